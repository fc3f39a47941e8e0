#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kestrel/base/aligned.h"
#include "kestrel/base/float_types.h"
#include "kestrel/base/rng.h"
#include "kestrel/base/thread_pool.h"

namespace kestrel {
namespace {

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(ToBf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(ToBf16(1.00390625f).bits, 0x3f80);  // half way, even below
  EXPECT_EQ(ToBf16(1.01171875f).bits, 0x3f82);  // half way, even above
  EXPECT_EQ(ToBf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(ToFloat(ToBf16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(E8m0, EndsArePinned) {
  EXPECT_EQ(E8m0ToFloat(0), std::ldexp(1.0f, -127));
  EXPECT_EQ(E8m0ToFloat(127), 1.0f);
  EXPECT_EQ(E8m0ToFloat(254), std::ldexp(1.0f, 127));
  EXPECT_TRUE(std::isnan(E8m0ToFloat(255)));
}

TEST(ThreadPool, EveryTaskOnceAtAnyWidth) {
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    for (int round = 0; round < 2000; ++round) {
      const int n = round % 17;
      std::vector<int> hits(static_cast<size_t>(n), 0);
      pool.Run(n, [&](int64_t i, int worker) {
        ASSERT_LT(worker, threads);
        ++hits[static_cast<size_t>(i)];
      });
      EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), 0), n);
    }
  }
}

TEST(AlignedBuffer, ZeroedAlignedMovable) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{100}, size_t{1} << 20, (size_t{9} << 20) + 3}) {
    AlignedBuffer a(n);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 64, 0u);
    for (size_t i = 0; i < n; i += 997) EXPECT_EQ(std::to_integer<int>(a.data()[i]), 0);
    AlignedBuffer b = std::move(a);
    EXPECT_EQ(b.size(), n);
  }
}

TEST(Rng, NormalHasUnitVariance) {
  Rng rng(1);
  double sum = 0, squares = 0;
  constexpr int kN = 100000;
  for (int i = 0; i < kN; ++i) {
    const double x = rng.Normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kN, 0, 0.02);
  EXPECT_NEAR(squares / kN, 1, 0.02);
}

}  // namespace
}  // namespace kestrel
