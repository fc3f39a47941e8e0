// Activations as int16 for MXFP4 products: groups of 32 columns share a power of two, so that codes times two (integers
// up to 12) give exact integer sums: 32 x 12 x 32767 < 2^24 is exact in int32 and in float32.
//
//   x[k] ~ q[k] * 2 * scale[k / 32]; the factor 2 is the codes'. Error at most scale, and |x|max <= 2^15 * 2 * scale.
#pragma once

#include <cstdint>

#include "kestrel/kernels/matmul/matmul.h"

namespace kestrel::matmul {

// Elements that take about as long as a fork and join are worth.
inline constexpr int64_t kForkElements = 64 << 10;

struct Int16Rows {
  const int16_t* value = nullptr;  // [rows, stride]
  const float* scale = nullptr;    // [rows, stride / 32]
};

// All rows, into ctx.arena. The largest magnitude of a group is in [2^14, 2^15) where the group's maximum is 2^-111 or
// more: below, the unit stays at 2^-125. Zeros give the scale 0; a NaN or an infinity gives zeros with the scale NaN.
Int16Rows QuantizeRows(Context& ctx, const Activations& x);

}  // namespace kestrel::matmul
