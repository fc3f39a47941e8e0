#include "bench/roofline.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "bench/median.h"
#include "kestrel/base/aligned.h"
#include "kestrel/base/clock.h"

#if defined(__x86_64__)
#define KESTREL_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define KESTREL_WIDE
#endif

#pragma GCC diagnostic ignored "-Wpsabi"

namespace kestrel::bench {
namespace {

constexpr size_t kTaskBytes = 128 << 10;
using Wide = uint64_t __attribute__((vector_size(64)));

// kStreams streams side by side, two lines of each a step.
template <int kStreams, int kPrefetchBytes>
__attribute__((always_inline)) inline uint64_t Sum(const std::byte* p, size_t bytes) {
  Wide sum[kStreams][2] = {};
  const size_t part = bytes / kStreams;
  for (size_t i = 0; i < part; i += 128) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* q = p + static_cast<size_t>(s) * part + i;
      if (kPrefetchBytes > 0) {
        __builtin_prefetch(q + kPrefetchBytes);
        __builtin_prefetch(q + kPrefetchBytes + 64);
      }
      Wide w[2];
      std::memcpy(w, q, sizeof w);
      sum[s][0] += w[0];
      sum[s][1] += w[1];
    }
  }
  Wide all = {};
  for (int s = 0; s < kStreams; ++s) all += sum[s][0] + sum[s][1];
  uint64_t result = 0;
  for (int i = 0; i < 8; ++i) result += all[i];
  return result;
}

KESTREL_WIDE uint64_t Sum1(const std::byte* p, size_t n) { return Sum<1, 0>(p, n); }
KESTREL_WIDE uint64_t Sum2(const std::byte* p, size_t n) { return Sum<2, 0>(p, n); }
KESTREL_WIDE uint64_t Sum4(const std::byte* p, size_t n) { return Sum<4, 0>(p, n); }
KESTREL_WIDE uint64_t Sum1Prefetch(const std::byte* p, size_t n) { return Sum<1, 4096>(p, n); }
KESTREL_WIDE uint64_t Sum2Prefetch(const std::byte* p, size_t n) { return Sum<2, 4096>(p, n); }
KESTREL_WIDE uint64_t Sum4Prefetch(const std::byte* p, size_t n) { return Sum<4, 4096>(p, n); }

using SumFn = uint64_t (*)(const std::byte*, size_t);
constexpr std::array<SumFn, kReadVariants> kSums = {Sum1, Sum2, Sum4, Sum1Prefetch, Sum2Prefetch, Sum4Prefetch};

}  // namespace

double ReadSeconds(ThreadPool& pool, std::span<const std::byte> buffer, int variant) {
  std::atomic<uint64_t> total{0};  // keeps the loads alive
  const double start = NowSeconds();
  pool.Run(static_cast<int64_t>(buffer.size() / kTaskBytes), [&](int64_t task, int) {
    total += kSums[static_cast<size_t>(variant)](buffer.data() + static_cast<size_t>(task) * kTaskBytes, kTaskBytes);
  });
  return NowSeconds() - start;
}

double ReadBandwidth(int threads) {
  ThreadPool pool(threads);
  AlignedBuffer buffer(size_t{512} << 20);
  std::memset(buffer.data(), 1, buffer.size());
  double best = 0;
  for (int variant = 0; variant < kReadVariants; ++variant) {
    std::vector<double> seconds;
    for (int i = 0; i < 7; ++i) seconds.push_back(ReadSeconds(pool, {buffer.data(), buffer.size()}, variant));
    best = std::max(best, static_cast<double>(buffer.size()) / Median(seconds) / 1e9);
  }
  return best;
}

}  // namespace kestrel::bench
