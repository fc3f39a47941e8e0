// Activations to int16 (int16_rows.h): plain loops for the compiler's vectorizer, compiled once for each instruction
// set. Included by tile_ISA.cpp inside its own namespace, after KESTREL_TARGET is defined.

// x [32] -> q [32], scale; see QuantizeRows.
KESTREL_INLINE void QuantizeOne(const float* x, int16_t* q, float* scale) {
  constexpr uint32_t kInfinityBits = 0x7f800000;
  // Of the 15 bits kept of 24. A maximum that would round to more than 32639 = 127 * 257 gets the next power, so that
  // both bytes of split_tile.inl.h have room.
  constexpr uint32_t kUnit = 1u << 9, kHeadroom = 128 * kUnit + kUnit / 2;
  constexpr uint32_t kLeastExponent = 16;  // biased; the scale 2^(e - 15) is then the least normal number
  constexpr float kMagic = 0x1.8p23f;      // adding it rounds to nearest even and leaves the integer in the low bits
  int32_t largest = 0;                     // magnitudes order like their bits
  for (int i = 0; i < kMxfp4Group; ++i) largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & 0x7fffffff);
  const auto bits = static_cast<uint32_t>(largest);
  if (bits == 0 || bits >= kInfinityBits) {
    std::fill_n(q, kMxfp4Group, int16_t{0});
    *scale = bits == 0 ? 0 : std::numeric_limits<float>::quiet_NaN();
    return;
  }
  const uint32_t exponent = std::max((bits + kHeadroom) >> 23, kLeastExponent);
  *scale = std::bit_cast<float>((exponent - 15) << 23);
  const auto to_units = std::bit_cast<float>((254 + 14 - exponent) << 23);
  for (int i = 0; i < kMxfp4Group; ++i) {
    q[i] = static_cast<int16_t>(std::bit_cast<int32_t>(x[i] * to_units + kMagic));
  }
}

KESTREL_TARGET void Quantize(const float* x, int64_t groups, int16_t* q, float* scale) {
  for (int64_t g = 0; g < groups; ++g) QuantizeOne(x + g * kMxfp4Group, q + g * kMxfp4Group, scale + g);
}
