// Decoding a token allocates nothing: every operator new in this process is counted while tokens are decoded.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "kestrel/model/model.h"

namespace {
std::atomic<long> allocations{0};
}

[[gnu::noinline]] void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace kestrel {
namespace {

class DecodeAllocation : public testing::TestWithParam<const char*> {};

TEST_P(DecodeAllocation, IsZero) {
  ThreadPool pool(2);
  Arena arena;
  Context ctx{pool, arena};
  auto model = Model::Load(ctx, std::string(KESTREL_SOURCE_DIR) + "/tests/fixtures/" + GetParam(), {});
  ASSERT_TRUE(model) << model.error().message;
  SequenceState state = (*model)->NewState();
  ASSERT_TRUE(state.Reserve(200));
  std::vector<float> logits(static_cast<size_t>((*model)->config().vocab_size));
  const int32_t id = 7, row = 0;
  const Segment segment{&state, 0, 1, Phase::kDecode};
  const auto step = [&] {
    return (*model)->Forward(ctx, {{&id, 1}, {&segment, 1}, {&row, 1}}, logits.data()).has_value();
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(step());
  const long before = allocations.load();
  for (int i = 0; i < 150; ++i) ASSERT_TRUE(step());
  EXPECT_EQ(allocations.load(), before);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, DecodeAllocation, testing::Values("k3-tiny", "linear-tiny"),
                         [](const auto& spec) { return std::string(spec.param) == "k3-tiny" ? "K3" : "Linear"; });

}  // namespace
}  // namespace kestrel
