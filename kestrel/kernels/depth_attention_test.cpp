#include "kestrel/kernels/depth_attention.h"

#include <cmath>

#include "kestrel/kernels/ref/depth_attention_ref.h"
#include "kestrel/kernels/rms_norm.h"
#include "kestrel/kernels/test_support.h"

namespace kestrel {
namespace {

// A01: the mixture goes to the sub-layer; the running sum stays.
TEST(DepthAttention, LeavesTheRunningSumAlone) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa);
    const std::vector<float> b0 = {1, 0}, p = {0, 1}, direction = {0, 0};
    const float* sources[] = {b0.data()};
    std::vector<float> out(2);
    const std::vector<float> before = p;
    DepthAttention(t.ctx, sources, p.data(), direction.data(), 1e-5f, 1, 2, out.data());
    EXPECT_EQ(out, (std::vector<float>{0.5f, 0.5f}));
    EXPECT_EQ(p, before);
  });
}

struct Case {
  std::vector<std::vector<float>> blocks;
  std::vector<const float*> sources;
  std::vector<float> partial;
  std::vector<std::vector<float>> directions;
  Case(Rng& rng, int64_t count, int64_t rows, int64_t D) {
    for (int64_t s = 0; s < count; ++s) blocks.push_back(RandomVector(rng, rows * D, 1.0 + static_cast<double>(s)));
    for (const auto& b : blocks) sources.push_back(b.data());
    partial = RandomVector(rng, rows * D, 2);
    for (int j = 0; j < 3; ++j) directions.push_back(RandomVector(rng, D, 2 / std::sqrt(static_cast<double>(D))));
  }
};

// Scores are up to about 2 sqrt(2 ln ..) < 10 here; their rounding, (D/8 + 8) eps of |v||direction|/rms <= 2 sqrt(D)
// .., becomes a relative error of the weights.
double Bound(int64_t D) { return 4 * (static_cast<double>(D) / 8 + 20) * kEpsF32; }

TEST(DepthAttention, MatchesDouble) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa, 2);
    Rng rng(8);
    for (const int64_t D : {1, 7, 16, 33, 64, 200}) {
      for (const int64_t count : {1, 2, 8}) {
        const int64_t rows = 3;
        const Case c(rng, count, rows, D);
        std::vector<float> out(static_cast<size_t>(rows * D));
        for (const bool with_partial : {false, true}) {
          DepthAttention(t.ctx, c.sources, with_partial ? c.partial.data() : nullptr, c.directions[0].data(), 1e-5f,
                         rows, D, out.data());
          for (int64_t r = 0; r < rows; ++r) {
            std::vector<const float*> v;
            for (const float* s : c.sources) v.push_back(s + r * D);
            if (with_partial) v.push_back(c.partial.data() + r * D);
            const auto want = DepthAttentionRef(v, c.directions[0].data(), 1e-5f, D);
            for (int64_t i = 0; i < D; ++i) {
              double size = 0;
              for (const float* s : v) size = std::max(size, std::abs(double{s[i]}));
              ASSERT_NEAR(out[static_cast<size_t>(r * D + i)], want[static_cast<size_t>(i)], Bound(D) * size);
            }
          }
        }
      }
    }
  });
}

TEST(DepthAttention, TwoPhasesEqualOne) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa, 2);
    Rng rng(9);
    const int64_t rows = 4, D = 300, count = 8;
    const Case c(rng, count, rows, D);
    std::vector<const float*> directions;
    for (const auto& d : c.directions) directions.push_back(d.data());
    std::vector<float> mix(static_cast<size_t>(3 * rows * D)), largest(3 * rows), sum(3 * rows);
    const DepthState state = {mix.data(), largest.data(), sum.data()};
    DepthAttentionFinished(t.ctx, c.sources, directions, 1e-5f, rows, D, state);
    std::vector<float> plain(static_cast<size_t>(rows * D)), merged = plain;
    for (int64_t j = 0; j < 3; ++j) {
      for (const float* partial : {static_cast<const float*>(nullptr), c.partial.data()}) {
        DepthAttention(t.ctx, c.sources, partial, directions[static_cast<size_t>(j)], 1e-5f, rows, D, plain.data());
        DepthAttentionMerge(t.ctx, state, j, partial, directions[static_cast<size_t>(j)], 1e-5f, rows, D,
                            merged.data());
        for (size_t i = 0; i < plain.size(); ++i) {
          double size = std::abs(double{c.partial[i]});
          for (const float* s : c.sources) size = std::max(size, std::abs(double{s[i]}));
          ASSERT_NEAR(merged[i], plain[i], 16 * kEpsF32 * size);  // a few ulp of the largest term
        }
      }
    }
  });
}

TEST(DepthAttention, NormIsTheNormOfTheMixtureAndRowsAreIndependent) {
  ForEachIsa([](Isa isa) {
    TestContext one(isa, 1), three(isa, 3);
    Rng rng(10);
    const int64_t rows = 40, D = 257;
    const Case c(rng, 3, rows, D);
    const auto norm_w = RandomVector(rng, D);
    std::vector<float> fused(static_cast<size_t>(rows * D)), plain = fused, each = fused;
    DepthAttentionNorm(three.ctx, c.sources, c.partial.data(), c.directions[0].data(), 1e-5f, rows, D, norm_w.data(),
                       1e-5f, fused.data());
    DepthAttention(three.ctx, c.sources, c.partial.data(), c.directions[0].data(), 1e-5f, rows, D, plain.data());
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<const float*> v;
      for (const float* s : c.sources) v.push_back(s + r * D);
      DepthAttention(one.ctx, v, c.partial.data() + r * D, c.directions[0].data(), 1e-5f, 1, D, each.data() + r * D);
    }
    EXPECT_TRUE(SameBits(plain, each));
    RmsNorm(one.ctx, plain.data(), norm_w.data(), 1e-5f, rows, D, plain.data());
    EXPECT_TRUE(SameBits(plain, fused));
  });
}

}  // namespace
}  // namespace kestrel
