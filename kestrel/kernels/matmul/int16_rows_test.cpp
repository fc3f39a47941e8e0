// Activations as int16 with a power of two for each group of 32.
#include "kestrel/kernels/matmul/int16_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "kestrel/base/rng.h"
#include "kestrel/kernels/matmul/tile.h"

namespace kestrel {
namespace {

struct Group {
  float x[kMxfp4Group] = {};
  int16_t q[kMxfp4Group];
  float scale = -1;

  void Quantize(Isa isa) {
    std::fill_n(q, kMxfp4Group, int16_t{-1});
    matmul::TilesFor(isa).quantize(x, 1, q, &scale);
  }
  int Largest() const {
    int largest = 0;
    for (int16_t v : q) largest = std::max(largest, std::abs(int{v}));
    return largest;
  }
};

TEST(Quantize, IsWithinHalfAUnitAndFillsTheRange) {
  for (Isa isa : AvailableIsas()) {
    SCOPED_TRACE(Name(isa));
    Rng rng(18);
    for (int e = -149; e <= 127; ++e) {
      for (int trial = 0; trial < 20; ++trial) {
        Group g;
        for (float& v : g.x) v = std::ldexp(static_cast<float>(rng.Uniform() * 2 - 1), e);
        if (trial == 0) g.x[3] = std::ldexp(1.0f, e);
        if (trial == 1) g.x[3] = -std::nextafter(std::ldexp(1.0f, e), 0.0f);  // rounds up to a power of two
        if (trial == 2 && e == 127) g.x[3] = FLT_MAX;
        if (trial == 3) g.x[3] = std::ldexp(32639.49f / 32768, e);  // the largest that keeps its power
        if (trial == 4) g.x[3] = -std::ldexp(32639.51f / 32768, e);
        g.Quantize(isa);
        const float largest = std::fabs(
            *std::max_element(g.x, g.x + kMxfp4Group, [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
        if (largest == 0) continue;
        int exponent;
        ASSERT_EQ(std::frexp(g.scale, &exponent), 0.5f) << "not a power of two";
        ASSERT_GE(g.scale, FLT_MIN);
        ASSERT_LE(g.Largest(), 32639);
        if (largest >= 0x1p-111f) {
          ASSERT_GE(g.Largest(), 16320) << "2^" << e;
        }
        for (int i = 0; i < kMxfp4Group; ++i) {
          ASSERT_LE(std::fabs(g.q[i] * 2.0 * g.scale - g.x[i]), double{g.scale}) << g.x[i];
        }
      }
    }
  }
}

TEST(Quantize, ZerosAreZerosAndNotFiniteIsNan) {
  for (Isa isa : AvailableIsas()) {
    SCOPED_TRACE(Name(isa));
    Group g;
    g.x[5] = -0.0f;
    g.Quantize(isa);
    EXPECT_EQ(g.scale, 0);
    EXPECT_EQ(g.Largest(), 0);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (float bad : {nan, -nan, INFINITY, -INFINITY}) {
      g.x[0] = 1;
      g.x[31] = bad;
      g.Quantize(isa);
      EXPECT_TRUE(std::isnan(g.scale));
      EXPECT_EQ(g.Largest(), 0);
    }
  }
}

TEST(Quantize, TiesGoToEven) {
  for (Isa isa : AvailableIsas()) {
    SCOPED_TRACE(Name(isa));
    Group g;
    const float units[] = {0x1p14f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 0.25f, -0.75f, 16383.5f};
    const int16_t want[] = {1 << 14, 0, 2, 2, 0, -2, -2, 0, -1, 1 << 14};
    std::copy(std::begin(units), std::end(units), g.x);
    g.Quantize(isa);
    ASSERT_EQ(g.scale, 0.5f);
    for (size_t i = 0; i < std::size(want); ++i) EXPECT_EQ(g.q[i], want[i]) << units[i];
  }
}

}  // namespace
}  // namespace kestrel
