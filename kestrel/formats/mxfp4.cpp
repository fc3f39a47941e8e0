#include "kestrel/formats/mxfp4.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kestrel {
namespace {

constexpr int kBias = 127;

// 2^exponent for the exponents that occur: -126 to 127, normal floats.
float PowerOfTwo(int exponent) { return std::bit_cast<float>(static_cast<uint32_t>(exponent + kBias) << 23); }

// Codes of one group at an exponent. Returns the squared error in units of 4^exponent: powers of two scale exactly, so
// errors at different exponents compare as if they had been taken in the weights' own unit.
// The thresholds are the middles between neighbours of 0, .5, 1, 1.5, 2, 3, 4, 6; > or >= sends a tie to the even code.
// Counting them has no branch, so compilers make it vector code.
double Encode(const float* in, int exponent, uint8_t* codes) {
  const float inverse = PowerOfTwo(-exponent);
  float miss[kMxfp4Group];
  for (int i = 0; i < kMxfp4Group; ++i) {
    const float x = std::abs(in[i]) * inverse;
    const int halves = (x > .25f) + (x >= .75f) + (x > 1.25f) + (x >= 1.75f);
    const int ones = (x > 2.5f) + (x >= 3.5f), two = x > 5.f;
    const int sign = (in[i] < 0) * 8;  // minus zero becomes zero
    codes[i] = static_cast<uint8_t>(halves + ones + two + sign);
    miss[i] = x - (static_cast<float>(halves) * .5f + static_cast<float>(ones + 2 * two));
  }
  double error = 0;
  for (const float m : miss) error += static_cast<double>(m) * static_cast<double>(m);
  return error;
}

}  // namespace

void QuantizeMxfp4(std::span<const float> in, Mxfp4Rule rule, uint8_t* packed, uint8_t* scale) {
  for (size_t g = 0; g < in.size() / kMxfp4Group; ++g) {
    const float* group = in.data() + g * kMxfp4Group;
    uint32_t peak = 0;  // as bits: for magnitudes their order is that of the numbers
    for (int i = 0; i < kMxfp4Group; ++i) peak = std::max(peak, std::bit_cast<uint32_t>(group[i]) & 0x7fffffffu);
    // The largest code is 6 = 1.5 * 2^2. Zeros and denormals (exponent field 0) clamp to the smallest scale.
    int exponent = std::max(static_cast<int>(peak >> 23) - kBias - 2, -kBias);
    uint8_t codes[kMxfp4Group], other[kMxfp4Group];
    const double error = Encode(group, exponent, codes);
    if (rule == Mxfp4Rule::kBestOfTwo && 4 * Encode(group, exponent + 1, other) < error) {
      ++exponent;
      std::copy_n(other, kMxfp4Group, codes);
    }
    scale[g] = static_cast<uint8_t>(exponent + kBias);
    for (int i = 0; i < kMxfp4Group / 2; ++i) {
      packed[g * kMxfp4Group / 2 + static_cast<size_t>(i)] =
          static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
    }
  }
}

void DequantizeMxfp4(const uint8_t* packed, const uint8_t* scale, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const uint8_t byte = packed[i / 2];
    out[i] = kE2m1[(i % 2 == 0 ? byte : byte >> 4) & 15] * E8m0ToFloat(scale[i / kMxfp4Group]);
  }
}

}  // namespace kestrel
