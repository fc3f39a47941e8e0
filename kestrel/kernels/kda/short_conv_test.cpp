#include "kestrel/kernels/kda/short_conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kestrel/base/rng.h"
#include "kestrel/kernels/ref/short_conv_ref.h"

namespace kestrel {
namespace {

using Floats = std::vector<float>;

Floats Random(int64_t count, Rng& rng) {
  Floats x(static_cast<size_t>(count));
  for (float& value : x) value = static_cast<float>(rng.Normal());
  return x;
}

class ShortConvOnEveryIsa : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, ShortConvOnEveryIsa, testing::ValuesIn(AvailableIsas()),
                         [](const auto& isa) { return std::string(Name(isa.param)); });

TEST_P(ShortConvOnEveryIsa, AgreesWithTheReferenceInAnyPieces) {
  ThreadPool pool(2);
  Arena arena;
  Context context{pool, arena, GetParam()};
  Rng rng(4);
  for (const int width : {1, 2, 4, 5}) {
    for (const int64_t channels : {1, 3, 16, 33, 48, 1040}) {
      const int64_t rows = 23;
      const Floats x = Random(rows * channels, rng), weight = Random(width * channels, rng);
      const Floats start = Random((width - 1) * channels, rng);
      Floats whole(x.size());
      Floats tail = start;
      const ConvSegment all{tail.data(), 0, rows};
      ShortConv(context, {&all, 1}, x.data(), channels, weight.data(), width, whole.data());
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t c = 0; c < channels; ++c) {
          const double want = ref::ShortConv(start.data(), x.data(), channels, weight.data(), width, t, c);
          double magnitude = 1;  // of the terms: cancellation in the sum is no fault of the kernel
          for (int j = 0; j < width; ++j) magnitude += std::fabs(weight[j * channels + c]) * 4;
          ASSERT_NEAR(whole[t * channels + c], want, magnitude * (width + 4) * 0x1p-24);
        }
      }
      for (const int64_t piece : {1, 2, 5, 16}) {
        Floats pieces(x.size());
        Floats moving = start;
        for (int64_t row = 0; row < rows; row += piece) {
          const ConvSegment segment{moving.data(), row, std::min(piece, rows - row)};
          ShortConv(context, {&segment, 1}, x.data(), channels, weight.data(), width, pieces.data());
        }
        EXPECT_EQ(pieces, whole) << width << " " << channels << " " << piece;
        EXPECT_EQ(moving, tail);
      }
    }
  }
}

TEST_P(ShortConvOnEveryIsa, SegmentsAndEmptySegments) {
  ThreadPool pool(3);
  Arena arena;
  Context context{pool, arena, GetParam()};
  Rng rng(6);
  const int64_t channels = 64;
  const Floats x = Random(10 * channels, rng), weight = Random(4 * channels, rng);
  Floats tails(3 * 3 * channels, 0.0f), y(x.size()), want(x.size());
  const ConvSegment segments[] = {{&tails[0], 0, 2}, {&tails[3 * channels], 2, 0}, {&tails[6 * channels], 2, 8}};
  ShortConv(context, segments, x.data(), channels, weight.data(), 4, y.data());
  Floats zero(3 * channels, 0.0f);
  for (const auto& [first, rows] : {std::pair{0, 2}, {2, 8}}) {
    Floats tail = zero;
    const ConvSegment alone{tail.data(), first, rows};
    ShortConv(context, {&alone, 1}, x.data(), channels, weight.data(), 4, want.data());
  }
  EXPECT_EQ(y, want);
  EXPECT_EQ(Floats(tails.begin() + 3 * channels, tails.begin() + 6 * channels), zero);
}

TEST_P(ShortConvOnEveryIsa, SiluFarOutIsZeroOrX) {
  ThreadPool pool(1);
  Arena arena;
  Context context{pool, arena, GetParam()};
  Floats x(16, -200.0f), tail(48, 0.0f), weight(64, 1.0f), y(16);
  x[1] = 200;
  x[2] = -1e30f;
  x[3] = std::nanf("");
  const ConvSegment segment{tail.data(), 0, 1};
  ShortConv(context, {&segment, 1}, x.data(), 16, weight.data(), 4, y.data());
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], 200.0f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_TRUE(std::isnan(y[3]));
}

}  // namespace
}  // namespace kestrel
