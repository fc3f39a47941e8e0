#include "kestrel/kernels/rms_norm.h"

#include <cmath>
#include <limits>

#include "kestrel/kernels/ref/elementwise_ref.h"
#include "kestrel/kernels/ref/rms_norm_ref.h"
#include "kestrel/kernels/test_support.h"

namespace kestrel {
namespace {

// Sum of n squares: at most n/8 roundings in a row, all of one sign, half of that after the root; five more elsewhere.
double RelativeBound(int64_t n) { return (static_cast<double>(n) / 16 + 8) * kEpsF32; }

TEST(RmsNorm, MatchesDoubleForEveryLength) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa);
    Rng rng(1);
    for (int64_t n = 1; n <= 140; ++n) {
      // One float in front: rows are not aligned.
      const auto x = RandomVector(rng, n + 1), w = RandomVector(rng, n + 1);
      std::vector<float> out(static_cast<size_t>(n + 1), 7.0f);
      RmsNorm(t.ctx, x.data() + 1, w.data() + 1, 1e-5f, 1, n, out.data());
      const auto want = RmsNormRef(x.data() + 1, w.data() + 1, 1e-5f, n);
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(out[i], want[i], RelativeBound(n) * std::abs(want[i])) << n;
      ASSERT_EQ(out[static_cast<size_t>(n)], 7.0f) << "wrote past the row";
      L2Norm(t.ctx, x.data() + 1, 1e-6f, 1, n, out.data());
      const auto l2 = L2NormRef(x.data() + 1, 1e-6f, n);
      for (size_t i = 0; i < l2.size(); ++i) ASSERT_NEAR(out[i], l2[i], RelativeBound(n) * std::abs(l2[i])) << n;
    }
  });
}

TEST(RmsNorm, BitsDependOnTheRowAlone) {
  ForEachIsa([](Isa isa) {
    TestContext one(isa, 1), three(isa, 3);
    Rng rng(2);
    const int64_t rows = 67, n = 1001;
    const auto x = RandomVector(rng, rows * n), w = RandomVector(rng, n);
    std::vector<float> a(x.size()), b(x.size()), in_place = x;
    for (int64_t r = 0; r < rows; ++r) RmsNorm(one.ctx, x.data() + r * n, w.data(), 1e-5f, 1, n, a.data() + r * n);
    RmsNorm(three.ctx, x.data(), w.data(), 1e-5f, rows, n, b.data());
    RmsNorm(three.ctx, in_place.data(), w.data(), 1e-5f, rows, n, in_place.data());
    EXPECT_TRUE(SameBits(a, b));
    EXPECT_TRUE(SameBits(a, in_place));
  });
}

TEST(RmsNorm, NanAndInfinityStayInTheirRow) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa);
    const int64_t n = 37;
    std::vector<float> x(3 * n, 1.0f), w(n, 1.0f), out(3 * n);
    x[5] = std::numeric_limits<float>::quiet_NaN();
    x[2 * n + 36] = std::numeric_limits<float>::infinity();
    RmsNorm(t.ctx, x.data(), w.data(), 0, 3, n, out.data());
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_EQ(out[n], 1.0f);
    EXPECT_TRUE(std::isnan(out[2 * n + 36]));  // inf / inf
  });
}

// K04: the mean goes over a head's channels, not over all of them.
TEST(GatedRmsNorm, NormsEachHeadByItself) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa);
    const std::vector<float> o = {1, 1, 100, 100}, w = {1, 1}, gate(4, 0.0f);
    std::vector<float> out(4);
    GatedRmsNorm(t.ctx, o.data(), w.data(), 0, gate.data(), 1, 2, 2, out.data());
    for (const float v : out) EXPECT_FLOAT_EQ(v, 0.5f);  // sigmoid(0) = 1/2
  });
}

TEST(GatedRmsNorm, MatchesDouble) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa, 2);
    Rng rng(3);
    for (const int64_t d : {1, 3, 16, 31, 64, 128}) {
      const int64_t rows = 5, heads = 3, n = rows * heads * d;
      const auto o = RandomVector(rng, n), w = RandomVector(rng, d), gate = RandomVector(rng, n, 3);
      std::vector<float> out(static_cast<size_t>(n));
      GatedRmsNorm(t.ctx, o.data(), w.data(), 1e-5f, gate.data(), rows, heads, d, out.data());
      for (int64_t h = 0; h < rows * heads; ++h) {
        const auto normed = RmsNormRef(o.data() + h * d, w.data(), 1e-5f, d);
        for (int64_t i = 0; i < d; ++i) {
          const size_t at = static_cast<size_t>(h * d + i);
          const double want = normed[static_cast<size_t>(i)] * SigmoidRef(gate[at]);
          ASSERT_NEAR(out[at], want, (RelativeBound(d) + 5 * kEpsF32) * std::abs(want));
        }
      }
    }
  });
}

}  // namespace
}  // namespace kestrel
