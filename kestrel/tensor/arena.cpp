#include "kestrel/tensor/arena.h"

#include <algorithm>

#include "kestrel/base/check.h"

namespace kestrel {
namespace {
constexpr size_t kMinBlock = size_t{1} << 20;
}

Arena::Arena(size_t bytes) {
  if (bytes > 0) blocks_.emplace_back(bytes);
}

void* Arena::TakeBytes(size_t bytes) {
  bytes = (bytes + 63) & ~size_t{63};
  while (current_ < blocks_.size() && used_ + bytes > blocks_[current_].size()) {
    ++current_;
    used_ = 0;
  }
  if (current_ == blocks_.size()) {
    blocks_.emplace_back(std::max({bytes, kMinBlock, capacity()}));
    ++growths_;
  }
  void* p = blocks_[current_].data() + used_;
  used_ += bytes;
  return p;
}

void Arena::Consolidate() {
  KESTREL_CHECK(current_ == 0 && used_ == 0);
  if (blocks_.size() <= 1) return;
  const size_t total = capacity();
  blocks_.clear();
  blocks_.emplace_back(total);
}

size_t Arena::capacity() const {
  size_t total = 0;
  for (const AlignedBuffer& b : blocks_) total += b.size();
  return total;
}

}  // namespace kestrel
