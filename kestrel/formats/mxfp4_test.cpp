// Expectations are written from the format's definition (spec 02): value = sign * magnitude[code & 7] * 2^(scale -
// 127).
#include "kestrel/formats/mxfp4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace kestrel {
namespace {

constexpr int kGroup = 32;
constexpr double kMagnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

double Value(int code, int scale) {
  return std::ldexp(code & 8 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7], scale - 127);
}

// By search over all codes: the nearest, a tie to the even code, past the largest clamps.
int NearestCode(double x, int scale) {
  int best = 0;
  for (int code = 0; code < 8; ++code) {
    const double miss = std::abs(std::abs(x) - Value(code, scale)), least = std::abs(std::abs(x) - Value(best, scale));
    if (miss < least || (miss == least && code % 2 == 0)) best = code;
  }
  return x < 0 ? best | 8 : best;
}
double SquaredError(const std::vector<float>& x, int scale) {
  double sum = 0;
  for (const float v : x) sum += std::pow(v - Value(NearestCode(v, scale), scale), 2);
  return sum;
}
// floor(log2(max)) - 2 as a byte; zeros and what is too small for a byte have the smallest.
int FloorScale(const std::vector<float>& x) {
  double peak = 0;
  for (const float v : x) peak = std::max(peak, std::abs(static_cast<double>(v)));
  return peak == 0 ? 0 : std::max(0, std::ilogb(peak) - 2 + 127);
}

struct Quantized {
  std::vector<uint8_t> packed, scale;
  int code(size_t i) const { return (packed[i / 2] >> (i % 2 * 4)) & 15; }  // even column in the low nibble
};
Quantized Quantize(const std::vector<float>& x, Mxfp4Rule rule) {
  Quantized q{std::vector<uint8_t>(x.size() / 2), std::vector<uint8_t>(x.size() / kGroup)};
  QuantizeMxfp4(x, rule, q.packed.data(), q.scale.data());
  return q;
}

TEST(Mxfp4, EveryByteAtEveryScaleDecodesExactly) {
  for (int scale = 0; scale < 255; ++scale) {
    std::vector<uint8_t> packed(256), scales(512 / kGroup, static_cast<uint8_t>(scale));
    for (int b = 0; b < 256; ++b) packed[static_cast<size_t>(b)] = static_cast<uint8_t>(b);
    std::vector<float> out(512);
    DequantizeMxfp4(packed.data(), scales.data(), out);
    for (int b = 0; b < 256; ++b) {
      // Exact in float, denormals at scale 0 and 1 included; infinite only past float's range (scale 253 up, code 6).
      EXPECT_EQ(out[static_cast<size_t>(2 * b)], static_cast<float>(Value(b & 15, scale))) << b << " " << scale;
      EXPECT_EQ(out[static_cast<size_t>(2 * b + 1)], static_cast<float>(Value(b >> 4, scale))) << b << " " << scale;
    }
  }
}

TEST(Mxfp4, EdgeValuesArePinned) {
  const std::vector<uint8_t> packed(16, 0x21);
  std::vector<float> out(kGroup);
  const auto decode = [&](uint8_t scale) {
    DequantizeMxfp4(packed.data(), &scale, out);
    return std::pair(out[0], out[1]);
  };
  EXPECT_EQ(decode(127), std::pair(0.5f, 1.0f));
  EXPECT_EQ(decode(0), std::pair(0x1p-128f, 0x1p-127f));  // 2^-127, not zero
  EXPECT_TRUE(std::isnan(decode(255).first));             // and a checkpoint with it is refused (model.bind)
}

TEST(Mxfp4, EveryCodeComesBack) {
  for (int scale = 1; scale <= 251; ++scale) {
    std::vector<float> x(kGroup, 0);
    for (int code = 0; code < 16; ++code) x[static_cast<size_t>(code)] = static_cast<float>(Value(code, scale));
    for (const Mxfp4Rule rule : {Mxfp4Rule::kFloor, Mxfp4Rule::kBestOfTwo}) {
      const Quantized q = Quantize(x, rule);
      EXPECT_EQ(q.scale[0], scale);
      for (int code = 0; code < 16; ++code) {
        EXPECT_EQ(q.code(static_cast<size_t>(code)), code == 8 ? 0 : code) << scale;  // minus zero becomes zero
      }
    }
  }
}

TEST(Mxfp4, TiesGoToTheEvenCodeAndTheRestToTheNearest) {
  std::vector<float> x = {6};  // pins the scale at 127
  for (int code = 0; code < 7; ++code) {
    const auto middle = static_cast<float>((kMagnitudes[code] + kMagnitudes[code + 1]) / 2);
    for (const float v : {middle, std::nextafter(middle, 0.f), std::nextafter(middle, 8.f)})
      x.push_back(v), x.push_back(-v);
  }
  x.resize(2 * kGroup, 0);
  x[kGroup] = 7.75f;  // past 6: clamps
  const Quantized q = Quantize(x, Mxfp4Rule::kFloor);
  ASSERT_EQ(q.scale[0], 127);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i > kGroup) continue;
    EXPECT_EQ(q.code(i), NearestCode(x[i], 127)) << x[i];
  }
}

TEST(Mxfp4, AgreesWithTheSearchOverAllCodes) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  int raised = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const int shift = static_cast<int>(random() % 240) - 120;
    std::vector<float> x(kGroup);
    for (float& v : x) v = std::ldexp(normal(random), shift);
    const int low = FloorScale(x);
    const Quantized floor = Quantize(x, Mxfp4Rule::kFloor), best = Quantize(x, Mxfp4Rule::kBestOfTwo);
    ASSERT_EQ(floor.scale[0], low);
    const int want = SquaredError(x, low + 1) < SquaredError(x, low) ? low + 1 : low;
    ASSERT_EQ(best.scale[0], want) << trial;
    raised += want - low;
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(floor.code(i), NearestCode(x[i], low)) << x[i];
      ASSERT_EQ(best.code(i), NearestCode(x[i], want)) << x[i];
    }
  }
  EXPECT_GT(raised, 0);  // both exponents were chosen at times
  EXPECT_LT(raised, 4000);
}

TEST(Mxfp4, ExtremesOfFloatHaveAScale) {
  const auto scale_of = [](float peak) {
    return Quantize(std::vector<float>(kGroup, peak), Mxfp4Rule::kFloor).scale[0];
  };
  EXPECT_EQ(scale_of(0), 0);
  EXPECT_EQ(scale_of(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(scale_of(std::numeric_limits<float>::min()), 0);
  EXPECT_EQ(scale_of(std::numeric_limits<float>::max()), 252);  // 2^127 / 4
  std::vector<float> back(kGroup);
  const Quantized q = Quantize(std::vector<float>(kGroup, -std::numeric_limits<float>::max()), Mxfp4Rule::kFloor);
  DequantizeMxfp4(q.packed.data(), q.scale.data(), back);
  EXPECT_EQ(back[7], -6 * 0x1p125f);
}

}  // namespace
}  // namespace kestrel
