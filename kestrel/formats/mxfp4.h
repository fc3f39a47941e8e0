// MXFP4 (spec 02): groups of 32 values along the input share one e8m0 scale; a value is e2m1, the even column in the
// low nibble.
#pragma once

#include <cstdint>
#include <span>

#include "kestrel/base/float_types.h"

namespace kestrel {

// kFloor: exponent floor(log2(max)) - 2, as the format's own rule has it. kBestOfTwo: that exponent or the next one up,
// whichever leaves the smaller squared error over the group; a tie keeps the lower.
enum class Mxfp4Rule { kFloor, kBestOfTwo };

// in [n], n a multiple of 32, finite -> packed [n / 2], scale [n / 32]. To the nearest code, ties to the even code.
void QuantizeMxfp4(std::span<const float> in, Mxfp4Rule rule, uint8_t* packed, uint8_t* scale);
// Exact: code * 2^(scale - 127).
void DequantizeMxfp4(const uint8_t* packed, const uint8_t* scale, std::span<float> out);

}  // namespace kestrel
