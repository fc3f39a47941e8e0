// A fork-join pool. Run(tasks, f) calls f(task, worker) once for each task in [0, tasks) and returns when all are done;
// tasks are handed out in order, one at a time. Nothing is allocated by Run. Which worker takes a task is not
// determined, so f must write only what belongs to the task: then results never depend on the thread count.
//
//   ThreadPool pool(2);
//   pool.Run(blocks, [&](int64_t block, int worker) { Multiply(block, scratch[worker]); });
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace kestrel {

class ThreadPool {
 public:
  // threads >= 1 counts the calling thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Not reentrant: f must not call Run on the same pool. Only one thread may call Run at a time.
  template <class F>
  void Run(int64_t tasks, F&& f) {
    if (tasks <= 0) return;
    if (workers_.empty() || tasks == 1) {
      for (int64_t i = 0; i < tasks; ++i) f(i, 0);
      return;
    }
    using Fn = std::remove_reference_t<F>;
    RunErased(tasks, const_cast<void*>(static_cast<const void*>(&f)),
              [](void* fn, int64_t task, int worker) { (*static_cast<Fn*>(fn))(task, worker); });
  }

 private:
  using Call = void (*)(void*, int64_t, int);
  void RunErased(int64_t tasks, void* fn, Call call);
  void WorkerLoop(int worker);
  void Drain(int worker);

  std::vector<std::thread> workers_;
  // The job in flight; written before epoch_ is advanced, read after it is seen.
  void* fn_ = nullptr;
  Call call_ = nullptr;
  int64_t tasks_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint64_t> epoch_{0};
  alignas(64) std::atomic<int> busy_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace kestrel
