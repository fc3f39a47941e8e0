// Scalar bfloat16, e2m1 and e8m0: the storage types of a checkpoint, bit for bit.
#pragma once

#include <bit>
#include <cstdint>

namespace kestrel {

// bfloat16 as its bit pattern: the upper half of a float32.
struct bf16 {
  uint16_t bits;
  friend bool operator==(bf16, bf16) = default;
};

inline float ToFloat(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN with its sign.
inline bf16 ToBf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

inline constexpr int kMxfp4Group = 32;  // values that share one e8m0 scale

// e2m1, four bits: sign, two exponent bits, one mantissa bit.
inline constexpr float kE2m1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};

// e8m0: 2^(s - 127). 0 is 2^-127 (a float32 denormal); 255 is NaN by the format and refused when a file is read.
inline float E8m0ToFloat(uint8_t s) {
  if (s == 0) return std::bit_cast<float>(0x00400000u);
  if (s == 255) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(static_cast<uint32_t>(s) << 23);
}

}  // namespace kestrel
