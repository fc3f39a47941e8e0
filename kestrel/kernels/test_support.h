// What the kernels' tests share: a context for each instruction set, random vectors, bit comparison.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kestrel/base/rng.h"
#include "kestrel/tensor/context.h"

namespace kestrel {

inline constexpr double kEpsF32 = 0x1p-24;  // half an ulp of 1
inline constexpr double kEpsBf16 = 0x1p-9;  // the same for bfloat16

struct TestContext {
  explicit TestContext(Isa isa, int threads = 1, MatMulMode mode = MatMulMode::kF32)
      : pool(threads), arena(1 << 20), ctx{pool, arena, isa, mode} {}
  ThreadPool pool;
  Arena arena;
  Context ctx;
};

inline std::vector<float> RandomVector(Rng& rng, int64_t n, double size = 1) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = static_cast<float>(size * rng.Normal());
  return x;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// body(isa) for each the CPU has, its name in the failure message.
template <class F>
void ForEachIsa(F&& body) {
  for (const Isa isa : AvailableIsas()) {
    SCOPED_TRACE(Name(isa));
    body(isa);
  }
}

}  // namespace kestrel
