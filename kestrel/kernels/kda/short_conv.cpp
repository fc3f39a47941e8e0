#include "kestrel/kernels/kda/short_conv.h"

#include <algorithm>
#include <cmath>

#include "kestrel/kernels/kda/short_conv_rows.h"

namespace kestrel {
namespace kda {

void ConvRowsPortable(const ConvTask& t) {
  for (int64_t row = 0; row < t.rows; ++row) {
    for (int64_t c = 0; c < t.channels; ++c) {
      float sum = t.weight[c] * t.Input(row - t.width + 1)[c];
      for (int j = 1; j < t.width; ++j) sum += t.weight[j * t.stride + c] * t.Input(row - t.width + 1 + j)[c];
      t.y[row * t.stride + c] = sum / (1.0f + std::exp(-sum));
    }
  }
}

namespace {

// 512 channels: the weights (8 KiB) and the last four rows stay in L1, and one token of 12288 channels is 24 tasks.
constexpr int64_t kBlock = 512;

ConvRows Choose(Isa isa, int64_t channels) {
#if defined(__x86_64__)
  if (channels % 16 == 0) {
    if (isa == Isa::kAvx512 || isa == Isa::kAvx512Bf16) return ConvRowsAvx512;
    if (isa == Isa::kAvx2) return ConvRowsAvx2;
  }
#else
  (void)isa, (void)channels;
#endif
  return ConvRowsPortable;
}

// Oldest first and forwards, so that a segment shorter than the tail may move it in place.
void MoveTail(const ConvTask& t, float* tail) {
  for (int j = 0; j < t.width - 1; ++j) {
    const float* from = t.Input(t.rows - t.width + 1 + j);
    if (from != tail + j * t.stride) std::copy_n(from, t.channels, tail + j * t.stride);
  }
}

}  // namespace
}  // namespace kda

void ShortConv(Context& context, std::span<const ConvSegment> segments, const float* x, int64_t channels,
               const float* weight_t, int width, float* y) {
  const kda::ConvRows rows = kda::Choose(context.isa, channels);
  const int64_t blocks = (channels + kda::kBlock - 1) / kda::kBlock;
  context.pool.Run(static_cast<int64_t>(segments.size()) * blocks, [&](int64_t task, int) {
    const ConvSegment& segment = segments[static_cast<size_t>(task / blocks)];
    const int64_t first = task % blocks * kda::kBlock;
    const int64_t at = segment.first_row * channels + first;
    const kda::ConvTask t{segment.tail + first,
                          x + at,
                          weight_t + first,
                          y + at,
                          segment.rows,
                          std::min(kda::kBlock, channels - first),
                          channels,
                          width};
    rows(t);
    kda::MoveTail(t, segment.tail + first);
  });
}

}  // namespace kestrel
