// Activations as int16 for MXFP4 products: groups of 32 columns share a power of two, so that codes times two (integers
// up to 12) give exact integer sums: 32 x 12 x 32639 < 2^24 is exact in int32 and in float32.
//
//   x[k] ~ q[k] * 2 * scale[k / 32]; the factor 2 is the codes'. Error at most scale, and |x|max <= 2^15 * 2 * scale.
#pragma once

#include <cstdint>

#include "kestrel/kernels/matmul/matmul.h"

namespace kestrel::matmul {

struct SplitGroup;

// Elements that take about as long as a fork and join are worth.
inline constexpr int64_t kForkElements = 64 << 10;

struct Int16Rows {
  const int16_t* value = nullptr;     // [rows, stride]
  const float* scale = nullptr;       // [rows, stride / 32]
  const SplitGroup* split = nullptr;  // [rows, stride / 32], once SplitRows made them
};

// All rows, into ctx.arena. The largest magnitude of a group is in [16320, 32640) where the group's maximum is 2^-111
// or more: below, the unit stays at 2^-125. Zeros give the scale 0; a NaN or an infinity gives zeros with the scale
// NaN.
Int16Rows QuantizeRows(Context& ctx, const Activations& x);
// The same numbers as bytes, for the tables that want them.
const SplitGroup* SplitRows(Context& ctx, const Activations& x, const Int16Rows& rows);

}  // namespace kestrel::matmul
