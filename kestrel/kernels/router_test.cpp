#include "kestrel/kernels/router.h"

#include <cmath>
#include <limits>
#include <set>

#include "kestrel/kernels/ref/router_ref.h"
#include "kestrel/kernels/test_support.h"

namespace kestrel {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights, cutoff, scores;
};

Routed RunRoute(Context& ctx, const RouterShape& shape, const std::vector<float>& logits,
                const std::vector<float>& bias) {
  const int64_t rows = static_cast<int64_t>(logits.size()) / shape.experts;
  Routed r;
  r.ids.resize(static_cast<size_t>(rows * shape.top_k));
  r.weights.resize(r.ids.size());
  r.cutoff.resize(static_cast<size_t>(rows));
  r.scores.resize(logits.size());
  Route(ctx, shape, logits.data(), bias.data(), rows, r.ids.data(), r.weights.data(), r.cutoff.data(), r.scores.data());
  return r;
}

// E01: two biased scores that differ by 2^-12 (which a bias in bfloat16 would lose); the bias picks, the score weighs.
TEST(Router, BiasOfOnePartIn4096Decides) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa);
    const RouterShape shape = {.experts = 4, .top_k = 2, .scale = 2};
    const std::vector<float> logits = {0, 0, 0, 2};
    for (const bool second : {false, true}) {
      std::vector<float> bias = {0, 1, 1, -9};
      bias[second ? 2 : 1] += 0x1p-12f;
      const Routed r = RunRoute(t.ctx, shape, logits, bias);
      EXPECT_EQ(r.ids[0], second ? 2 : 1);
      EXPECT_EQ(r.ids[1], second ? 1 : 2);
      EXPECT_EQ(r.weights, (std::vector<float>{1, 1}));  // 0.5 / (0.5 + 0.5) * 2
      EXPECT_EQ(r.cutoff[0], 0.5f);
    }
  });
}

TEST(Router, TiesTakeTheLowerIndex) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa);
    const RouterShape shape = {.experts = 40, .top_k = 16};
    const Routed r = RunRoute(t.ctx, shape, std::vector<float>(40, 1.0f), std::vector<float>(40, 0.0f));
    for (int s = 0; s < 16; ++s) EXPECT_EQ(r.ids[static_cast<size_t>(s)], s);
  });
}

TEST(Router, MatchesTheSortedReference) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa, 2);
    Rng rng(11);
    for (const RouterShape& shape :
         {RouterShape{.experts = 896, .top_k = 16, .scale = 2.5f}, RouterShape{.experts = 33, .top_k = 33},
          RouterShape{.experts = 1, .top_k = 1}, RouterShape{.experts = 64, .top_k = 6, .groups = 8, .topk_groups = 3},
          RouterShape{.experts = 16, .top_k = 2, .groups = 16, .topk_groups = 4},
          RouterShape{.experts = 100, .top_k = 5, .sigmoid = false, .renormalize = false}}) {
      const int64_t rows = 21, E = shape.experts;
      const auto logits = RandomVector(rng, rows * E, 2), bias = RandomVector(rng, E, 0.1);
      const Routed r = RunRoute(t.ctx, shape, logits, bias);
      for (int64_t row = 0; row < rows; ++row) {
        const RouteRefResult want = RouteRef(shape, logits.data() + row * E, bias.data());
        for (int s = 0; s < shape.top_k; ++s) {
          const size_t at = static_cast<size_t>(row * shape.top_k + s);
          // Scores and biases are random reals: a tie within float rounding would show as a wrong id, none occurs.
          ASSERT_EQ(r.ids[at], want.order[static_cast<size_t>(s)]) << E << " row " << row;
          ASSERT_NEAR(r.weights[at], want.weights[static_cast<size_t>(s)],
                      (shape.top_k + 40) * kEpsF32 * std::abs(want.weights[static_cast<size_t>(s)]));
        }
        if (shape.top_k < E) {
          const double next = want.biased[static_cast<size_t>(want.order[static_cast<size_t>(shape.top_k)])];
          if (std::isfinite(next)) {
            ASSERT_NEAR(r.cutoff[static_cast<size_t>(row)], next, 40 * kEpsF32);
          }
        } else {
          ASSERT_EQ(r.cutoff[static_cast<size_t>(row)], -std::numeric_limits<float>::infinity());
        }
      }
    }
  });
}

TEST(Router, NanLogitsStillGiveValidDistinctIds) {
  ForEachIsa([](Isa isa) {
    TestContext t(isa);
    const RouterShape shape = {.experts = 48, .top_k = 8};
    for (const int good : {0, 3, 48}) {
      std::vector<float> logits(48, kNan);
      for (int i = 0; i < good; ++i) logits[static_cast<size_t>(47 - i)] = static_cast<float>(i);
      const Routed r = RunRoute(t.ctx, shape, logits, std::vector<float>(48, 0.0f));
      EXPECT_EQ(std::set<int32_t>(r.ids.begin(), r.ids.end()).size(), 8u);
      for (const int32_t id : r.ids) EXPECT_TRUE(id >= 0 && id < 48);
      if (good == 3) {
        EXPECT_EQ(r.ids[0], 45);
      }
    }
  });
}

TEST(Router, BitsDependOnTheRowAlone) {
  ForEachIsa([](Isa isa) {
    TestContext one(isa, 1), three(isa, 3);
    Rng rng(12);
    const RouterShape shape = {.experts = 896, .top_k = 16};
    const int64_t rows = 50;
    const auto logits = RandomVector(rng, rows * 896, 2), bias = RandomVector(rng, 896, 0.1);
    const Routed all = RunRoute(three.ctx, shape, logits, bias);
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<float> mine(logits.begin() + row * 896, logits.begin() + (row + 1) * 896);
      const Routed r = RunRoute(one.ctx, shape, mine, bias);
      for (size_t s = 0; s < 16; ++s) {
        ASSERT_EQ(r.ids[s], all.ids[static_cast<size_t>(row) * 16 + s]);
        ASSERT_EQ(r.weights[s], all.weights[static_cast<size_t>(row) * 16 + s]);
      }
    }
  });
}

}  // namespace
}  // namespace kestrel
