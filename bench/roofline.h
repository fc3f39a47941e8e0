// The read bandwidth roof: how fast this machine can sum a buffer, best of several plain loops (1, 2 and 4 streams,
// with and without software prefetch). One stream without prefetch is up to a fifth below what a good kernel reads.
//
//   for (int v = 0; v < kReadVariants; ++v) best = std::max(best, bytes / ReadSeconds(pool, buffer, v));
#pragma once

#include <cstddef>
#include <span>

#include "kestrel/base/thread_pool.h"

namespace kestrel::bench {

inline constexpr int kReadVariants = 6;

// Seconds of one pass over the buffer with the pool's threads, in tasks of 128 KiB.
double ReadSeconds(ThreadPool& pool, std::span<const std::byte> buffer, int variant);

// GB/s over a buffer of 512 MiB: the best variant's median of seven passes.
double ReadBandwidth(int threads);

}  // namespace kestrel::bench
