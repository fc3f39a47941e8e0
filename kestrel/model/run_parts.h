// Runs the parts of a long job on a pool: remembers the first error, skips what is left after it, reports progress from
// the calling thread.
//
//   return RunParts(pool, parts.size(), total_bytes, progress, [&](int64_t part, int worker) -> Result<uint64_t> { ...
//   });
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

#include "kestrel/base/result.h"
#include "kestrel/base/thread_pool.h"

namespace kestrel {

// In bytes; called on the calling thread. May be empty.
using ByteProgress = std::function<void(double done, double total)>;

// work(part, worker) -> Result<uint64_t>: the bytes it did.
template <class F>
Status RunParts(ThreadPool& pool, int64_t parts, uint64_t total, const ByteProgress& progress, F&& work) {
  std::atomic<uint64_t> done{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  Status status;
  pool.Run(parts, [&](int64_t part, int worker) {
    if (failed.load(std::memory_order_relaxed)) return;
    const Result<uint64_t> bytes = work(part, worker);
    if (!bytes) {
      const std::lock_guard lock(mutex);
      if (status) status = tl::unexpected<Error>(bytes.error());
      failed = true;
      return;
    }
    const uint64_t now = done += *bytes;
    // Worker 0 is the calling thread.
    if (worker == 0 && progress) progress(static_cast<double>(now), static_cast<double>(total));
  });
  return status;
}

}  // namespace kestrel
