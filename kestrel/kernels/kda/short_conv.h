// The short causal convolution in front of KDA's q, k and v, depthwise, then SiLU:
//
//   y_t = silu(sum_j weight_t[j, c] in_{t - width + 1 + j, c}),  inputs before the segment from its tail
//
// Same bits however a sequence is cut into calls. Tails move on: the last width - 1 inputs, oldest first, zero at
// start.
#pragma once

#include <cstdint>
#include <span>

#include "kestrel/tensor/context.h"

namespace kestrel {

struct ConvSegment {
  float* tail = nullptr;  // [width - 1, channels]
  int64_t first_row = 0;
  int64_t rows = 0;
};

// x, y [rows, channels], not overlapping; weight_t [width, channels], transposed once at load.
void ShortConv(Context& context, std::span<const ConvSegment> segments, const float* x, int64_t channels,
               const float* weight_t, int width, float* y);

}  // namespace kestrel
