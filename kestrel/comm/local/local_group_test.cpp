#include <gtest/gtest.h>

#include <array>

#include "kestrel/comm/group.h"

namespace kestrel {
namespace {

TEST(LocalGroup, CollectivesAreTheIdentity) {
  const auto group = MakeLocalGroup();
  EXPECT_EQ(group->size(), 1);
  std::array<float, 3> x = {1, 2, 3};
  EXPECT_TRUE(group->AllReduceSum(x));
  EXPECT_EQ(x, (std::array<float, 3>{1, 2, 3}));
  std::array<std::byte, 2> mine = {std::byte{1}, std::byte{2}}, out{};
  EXPECT_TRUE(group->AllGather(mine, out));
  EXPECT_EQ(mine, out);
  EXPECT_FALSE(group->AllGather(mine, std::span(out).first(1)));
  EXPECT_FALSE(group->Broadcast(mine, 1));
}

TEST(ShareOf, CoversEveryLayerOnce) {  // A04: 93 layers over 4 ranks lost three of them elsewhere
  for (int layers = 0; layers <= 130; ++layers) {
    for (int size = 1; size <= 32; ++size) {
      int next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Span span = ShareOf(layers, size, rank);
        ASSERT_EQ(span.begin, next);
        ASSERT_GE(span.end, span.begin);
        next = span.end;
      }
      ASSERT_EQ(next, layers);
    }
  }
}

}  // namespace
}  // namespace kestrel
