#include "kestrel/kernels/matmul/int16_rows.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kestrel/base/float_types.h"

namespace kestrel::matmul {
namespace {
constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint32_t kHalfUnit = 1u << 8;  // of the 15 bits that stay of 24: a maximum that rounds up gets the next power
constexpr uint32_t kLeastExponent = 16;  // biased; the scale 2^(e - 15) is then the least normal number
float PowerOfTwo(uint32_t biased) { return std::bit_cast<float>(biased << 23); }
}  // namespace

void QuantizeGroup(const float* x, int16_t* q, float* scale) {
  int32_t largest = 0;  // magnitudes order like their bits
  for (int i = 0; i < kMxfp4Group; ++i) largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & 0x7fffffff);
  const auto bits = static_cast<uint32_t>(largest);
  if (bits == 0 || bits >= kInfinityBits) {
    std::fill_n(q, kMxfp4Group, int16_t{0});
    *scale = bits == 0 ? 0 : std::numeric_limits<float>::quiet_NaN();
    return;
  }
  const uint32_t exponent = std::max((bits + kHalfUnit) >> 23, kLeastExponent);
  *scale = PowerOfTwo(exponent - 15);
  const float to_units = PowerOfTwo(254 + 14 - exponent);
  constexpr float kMagic = 0x1.8p23f;  // adding it rounds to nearest even and leaves the integer in the low bits
  for (int i = 0; i < kMxfp4Group; ++i) {
    q[i] = static_cast<int16_t>(std::bit_cast<int32_t>(x[i] * to_units + kMagic));
  }
}

Int16Rows QuantizeRows(Context& ctx, const Activations& x) {
  const int64_t groups = x.stride / kMxfp4Group;
  auto* value = ctx.arena.Take<int16_t>(x.rows * x.stride);
  auto* scale = ctx.arena.Take<float>(x.rows * groups);
  const auto quantize_row = [&](int64_t row, int) {
    for (int64_t i = row * groups; i < (row + 1) * groups; ++i) {
      QuantizeGroup(x.f32 + i * kMxfp4Group, value + i * kMxfp4Group, scale + i);
    }
  };
  if (x.rows * x.cols < kForkElements) {
    for (int64_t row = 0; row < x.rows; ++row) quantize_row(row, 0);
  } else {
    ctx.pool.Run(x.rows, quantize_row);
  }
  return {value, scale};
}

}  // namespace kestrel::matmul
