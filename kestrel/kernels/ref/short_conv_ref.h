// Causal depthwise convolution and SiLU in double: y_t = silu(sum_j weight[j, c] in_{t - width + 1 + j}), in_{<0} =
// tail.
#pragma once

#include <cmath>
#include <cstdint>

namespace kestrel::ref {

// tail [width - 1, channels], x and y [rows, channels], weight_t [width, channels]; y of one element.
inline double ShortConv(const float* tail, const float* x, int64_t channels, const float* weight_t, int width,
                        int64_t t, int64_t c) {
  double sum = 0;
  for (int j = 0; j < width; ++j) {
    const int64_t from = t - width + 1 + j;
    sum += double{weight_t[j * channels + c]} *
           (from < 0 ? tail[(from + width - 1) * channels + c] : x[from * channels + c]);
  }
  return sum / (1 + std::exp(-sum));
}

}  // namespace kestrel::ref
