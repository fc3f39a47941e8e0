// Scratch memory of one pass, planned at start: Take() bumps a pointer, Mark/Rewind give it back in order. When more is
// taken than was planned the arena grows by a block and counts it, so that a test can assert that decoding never does.
//
//   const ArenaScope scope(arena);
//   float* h = arena.Take<float>(rows * width);
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kestrel/base/aligned.h"

namespace kestrel {

class Arena {
 public:
  explicit Arena(size_t bytes = 0);

  // Uninitialised, 64-byte aligned; valid until a Rewind past it.
  template <class T>
  T* Take(int64_t count) {
    return static_cast<T*>(TakeBytes(static_cast<size_t>(count) * sizeof(T)));
  }
  void* TakeBytes(size_t bytes);

  struct Mark {
    size_t block;
    size_t used;
  };
  Mark mark() const { return {current_, used_}; }
  void Rewind(Mark mark) {
    current_ = mark.block;
    used_ = mark.used;
  }

  // Folds grown blocks into one of the peak size; only at a time when nothing is taken.
  void Consolidate();
  int64_t growths() const { return growths_; }
  size_t capacity() const;

 private:
  std::vector<AlignedBuffer> blocks_;
  size_t current_ = 0;
  size_t used_ = 0;
  int64_t growths_ = 0;
};

class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.Rewind(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace kestrel
