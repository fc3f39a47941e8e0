#include "kestrel/formats/mxfp4.h"

#include <algorithm>
#include <cmath>

namespace kestrel {
namespace {

constexpr int kBias = 127;

// The code of magnitude x >= 0: nearest of 0, .5, 1, 1.5, 2, 3, 4, 6, ties to the even code, past 6 clamped.
uint8_t Nearest(double x) {
  uint8_t code = 0;
  while (code < 7) {
    const double middle = (static_cast<double>(kE2m1[code]) + kE2m1[code + 1]) / 2;
    const bool up = x > middle || (x == middle && (code & 1) != 0);
    if (!up) break;
    ++code;
  }
  return code;
}

// Codes of one group at an exponent; returns the squared error.
double Encode(const float* in, int exponent, uint8_t* codes) {
  double error = 0;
  for (int i = 0; i < kMxfp4Group; ++i) {
    const double x = std::ldexp(std::abs(static_cast<double>(in[i])), -exponent);
    const uint8_t code = Nearest(x);
    const double miss = std::ldexp(x - kE2m1[code], exponent);
    error += miss * miss;
    codes[i] = static_cast<uint8_t>(code | (std::signbit(in[i]) && in[i] != 0 ? 8 : 0));
  }
  return error;
}

}  // namespace

void QuantizeMxfp4(std::span<const float> in, Mxfp4Rule rule, uint8_t* packed, uint8_t* scale) {
  for (size_t g = 0; g < in.size() / kMxfp4Group; ++g) {
    const float* group = in.data() + g * kMxfp4Group;
    float peak = 0;
    for (int i = 0; i < kMxfp4Group; ++i) peak = std::max(peak, std::abs(group[i]));
    // The largest code is 6 = 1.5 * 2^2.
    int exponent = peak > 0 ? std::clamp(std::ilogb(peak) - 2, -kBias, kBias) : -kBias;
    uint8_t codes[kMxfp4Group], other[kMxfp4Group];
    const double error = Encode(group, exponent, codes);
    if (rule == Mxfp4Rule::kBestOfTwo && exponent < kBias && Encode(group, exponent + 1, other) < error) {
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
