#include "kestrel/kernels/elementwise.h"

#include <cmath>
#include <functional>
#include <limits>

#include "kestrel/kernels/ref/elementwise_ref.h"
#include "kestrel/kernels/simd/vector_table.h"
#include "kestrel/kernels/test_support.h"

namespace kestrel {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Error of a float against the exact value, in ulp of the exact value rounded to float (denormal spacing at the
// bottom).
double UlpError(float got, double want) {
  if (std::isinf(static_cast<float>(want))) return got == static_cast<float>(want) ? 0 : 1e9;
  const float nearest = std::abs(static_cast<float>(want));
  return std::abs(got - want) / (double{std::nextafter(nearest, kInf)} - nearest);
}

double WorstUlp(void (*f)(const float*, int64_t, float*), const std::function<double(double)>& exact, float from,
                float to) {
  std::vector<float> x, y(4096);
  for (int i = 0; i < 4096; ++i) x.push_back(from + (to - from) * static_cast<float>(i) / 4095.0f);
  f(x.data(), 4096, y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, UlpError(y[i], exact(x[i])));
  return worst;
}

TEST(Elementwise, FunctionsAreWithinTwoUlp) {
  ForEachIsa([](Isa isa) {
    const VectorTable& table = GetVectorTable(isa);
    const std::function<double(double)> exp = [](double x) { return std::exp(x); };
    const std::function<double(double)> tanh = [](double x) { return std::tanh(x); };
    for (const float range : {1e-30f, 1e-3f, 0.3f, 0.6f, 1.0f, 5.0f, 20.0f, 87.0f, 110.0f, 1e4f}) {
      EXPECT_LE(WorstUlp(table.exp, exp, -range, range), 2.0) << range;
      EXPECT_LE(WorstUlp(table.tanh, tanh, -range, range), 2.0) << range;
      // Below -87 the exponential overflows a little before its inverse leaves the denormals: 0 for under 1e-38.
      if (range <= 87) {
        EXPECT_LE(WorstUlp(table.sigmoid, SigmoidRef, -range, range), 2.5) << range;
      }
    }
  });
}

// K16: no garbage past the range of exp, in the flags of a release.
TEST(Elementwise, LimitsAreRight) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa);
    const std::vector<float> x = {-200, -1e30f, 200, 1e30f, kInf, -100};
    std::vector<float> s(6), silu(6), situ(6), up = {3, -1e30f, 1e30f, -5, 1, 1e30f};
    Sigmoid(t.ctx, x.data(), 6, s.data());
    EXPECT_EQ(s[0], 0.0f);
    EXPECT_EQ(s[1], 0.0f);
    EXPECT_EQ(s[2], 1.0f);
    EXPECT_EQ(s[4], 1.0f);
    Silu(t.ctx, x.data(), 6, silu.data());
    EXPECT_EQ(silu[0], 0.0f);
    EXPECT_EQ(silu[2], 200.0f);
    EXPECT_EQ(silu[3], 1e30f);
    Situ(t.ctx, x.data(), up.data(), 4, 25, 6, situ.data());
    for (const float v : situ) EXPECT_TRUE(std::isfinite(v));
    EXPECT_EQ(situ[0], 0.0f);
    EXPECT_FLOAT_EQ(situ[2], 100.0f);
  });
}

TEST(Elementwise, NanInNanOut) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa);
    const std::vector<float> nan(19, kNan), one(19, 1.0f);
    std::vector<float> y(19);
    const auto all_nan = [&] {
      for (const float v : y) EXPECT_TRUE(std::isnan(v));
      std::fill(y.begin(), y.end(), 0.0f);
    };
    Sigmoid(t.ctx, nan.data(), 19, y.data()), all_nan();
    Silu(t.ctx, nan.data(), 19, y.data()), all_nan();
    Situ(t.ctx, nan.data(), one.data(), 4, 25, 19, y.data()), all_nan();
    Situ(t.ctx, one.data(), nan.data(), 4, 25, 19, y.data()), all_nan();
    SiluMul(t.ctx, one.data(), nan.data(), 19, y.data()), all_nan();
    GetVectorTable(isa).exp(nan.data(), 19, y.data()), all_nan();
  });
}

TEST(Elementwise, MatchesDoubleForEveryLength) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa);
    Rng rng(4);
    for (int64_t n = 0; n <= 70; ++n) {
      const auto a = RandomVector(rng, n, 4), u = RandomVector(rng, n, 20);
      std::vector<float> situ(a.size() + 1, 7.0f), plain = situ, silu = situ, gated = situ, sum = u;
      Situ(t.ctx, a.data(), u.data(), 4, 25, n, situ.data());
      Situ(t.ctx, a.data(), u.data(), 4, 0, n, plain.data());
      SiluMul(t.ctx, a.data(), u.data(), n, silu.data());
      SigmoidMul(t.ctx, u.data(), a.data(), n, gated.data());
      AddTo(t.ctx, a.data(), n, sum.data());
      for (size_t i = 0; i < a.size(); ++i) {
        // 12: two tanh and a sigmoid of 2 ulp each = 4 eps, and as many products.
        const auto near = [&](float got, double want) { ASSERT_NEAR(got, want, 20 * kEpsF32 * std::abs(want)) << n; };
        near(situ[i], SituRef(a[i], u[i], 4, 25));
        near(plain[i], SituRef(a[i], u[i], 4, 0));
        near(silu[i], SiluRef(a[i]) * u[i]);
        near(gated[i], u[i] * SigmoidRef(a[i]));
        ASSERT_EQ(sum[i], u[i] + a[i]);
      }
      for (const auto* y : {&situ, &plain, &silu, &gated}) ASSERT_EQ(y->back(), 7.0f) << "wrote past the end";
    }
  });
}

TEST(Elementwise, BitsDoNotDependOnThreadsOrSplit) {
  ForEachIsa([](Isa isa) {
    TestContext one(isa, 1), three(isa, 3);
    Rng rng(5);
    const int64_t n = 50001;
    const auto a = RandomVector(rng, n, 4), u = RandomVector(rng, n, 20);
    std::vector<float> x(a.size()), y(a.size()), z(a.size());
    Situ(one.ctx, a.data(), u.data(), 4, 25, n, x.data());
    Situ(three.ctx, a.data(), u.data(), 4, 25, n, y.data());
    for (int64_t i = 0; i < n; i += 1667) {
      Situ(one.ctx, a.data() + i, u.data() + i, 4, 25, std::min<int64_t>(1667, n - i), z.data() + i);
    }
    EXPECT_TRUE(SameBits(x, y));
    EXPECT_TRUE(SameBits(x, z));
  });
}

TEST(Softmax, MatchesDoubleAndTakesMasks) {
  ForEachIsa([](Isa isa) {
    Rng rng(6);
    for (int64_t n = 1; n <= 70; ++n) {
      auto x = RandomVector(rng, n, 30);
      if (n > 2) x[1] = -kInf;
      const auto in = x;
      double sum = 0, largest = -1e300;
      for (const float v : in) largest = std::max(largest, double{v});
      for (const float v : in) sum += std::exp(v - largest);
      Softmax(isa, x.data(), n);
      for (size_t i = 0; i < x.size(); ++i) {
        // x - max rounds by up to 2^-24 of |x - max| < 240, and exp turns that into a relative error.
        const double want = std::exp(in[i] - largest) / sum;
        ASSERT_NEAR(x[i], want, 260 * kEpsF32 * want + 1e-45) << n;
      }
      if (n > 2) {
        ASSERT_EQ(x[1], 0.0f);
      }
    }
    std::vector<float> bad = {0, kNan, 1};
    Softmax(isa, bad.data(), 3);
    EXPECT_TRUE(std::isnan(bad[0] + bad[1] + bad[2]));
  });
}

TEST(CombineExperts, MatchesDoubleAndBatchesBitwise) {
  ForEachIsa([](Isa isa) {
    TestContext one(isa, 1), two(isa, 2);
    Rng rng(7);
    const int64_t rows = 9, k = 16;
    for (const int64_t n : {1, 15, 64, 131, 3584}) {
      const auto y = RandomVector(rng, rows * k * n), w = RandomVector(rng, rows * k);
      std::vector<float> all(static_cast<size_t>(rows * n)), each = all;
      CombineExperts(two.ctx, y.data(), w.data(), rows, k, n, all.data());
      for (int64_t r = 0; r < rows; ++r) {
        CombineExperts(one.ctx, y.data() + r * k * n, w.data() + r * k, 1, k, n, each.data() + r * n);
        for (int64_t i = 0; i < n; ++i) {
          double want = 0, size = 0;
          for (int64_t s = 0; s < k; ++s) {
            const double p = double{w[static_cast<size_t>(r * k + s)]} * y[static_cast<size_t>((r * k + s) * n + i)];
            want += p, size += std::abs(p);
          }
          ASSERT_NEAR(all[static_cast<size_t>(r * n + i)], want, 2 * k * kEpsF32 * size);
        }
      }
      EXPECT_TRUE(SameBits(all, each));
    }
  });
}

}  // namespace
}  // namespace kestrel
