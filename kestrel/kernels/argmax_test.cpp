#include "kestrel/kernels/argmax.h"

#include <limits>

#include "kestrel/kernels/embedding.h"
#include "kestrel/kernels/test_support.h"

namespace kestrel {
namespace {

TEST(Argmax, FirstMaximumAtEveryPlaceAndLength) {
  ForEachIsa([](Isa isa) {
    EXPECT_EQ(Argmax(isa, nullptr, 0), -1);
    for (int64_t n = 1; n <= 67; ++n) {
      for (int64_t at = 0; at < n; ++at) {
        std::vector<float> x(static_cast<size_t>(n), -3.0f);
        x[static_cast<size_t>(at)] = -1.0f;
        x[static_cast<size_t>(n - 1)] = -1.0f;
        ASSERT_EQ(Argmax(isa, x.data(), n), at);
      }
    }
  });
}

// K15: NaN logits must not become token 0.
TEST(Argmax, RefusesWhatIsNotFinite) {
  ForEachIsa([](Isa isa) {
    const float inf = std::numeric_limits<float>::infinity();
    for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
      for (int64_t n = 1; n <= 67; ++n) {
        for (int64_t at = 0; at < n; ++at) {
          std::vector<float> x(static_cast<size_t>(n), std::numeric_limits<float>::max());
          ASSERT_EQ(Argmax(isa, x.data(), n), 0);
          x[static_cast<size_t>(at)] = bad;
          ASSERT_EQ(Argmax(isa, x.data(), n), -1) << n << " " << at;
        }
      }
    }
  });
}

TEST(EmbeddingGather, TakesRows) {
  TestContext t(BestIsa(), 2);
  const int64_t D = 67, vocabulary = 9;
  std::vector<float> table;
  std::vector<bf16> half;
  for (int64_t i = 0; i < D * vocabulary; ++i) {
    table.push_back(static_cast<float>(i % 251) - 100);  // exact in bfloat16
    half.push_back(ToBf16(table.back()));
  }
  const std::vector<int32_t> ids = {8, 0, 3, 3};
  std::vector<float> a(4 * D), b(4 * D);
  EmbeddingGather(t.ctx, table.data(), ids.data(), 4, D, a.data());
  EmbeddingGather(t.ctx, half.data(), ids.data(), 4, D, b.data());
  for (size_t r = 0; r < 4; ++r) {
    for (size_t i = 0; i < static_cast<size_t>(D); ++i)
      ASSERT_EQ(a[r * D + i], table[static_cast<size_t>(ids[r]) * D + i]);
  }
  EXPECT_TRUE(SameBits(a, b));
}

}  // namespace
}  // namespace kestrel
