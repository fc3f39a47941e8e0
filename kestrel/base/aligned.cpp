#include "kestrel/base/aligned.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "kestrel/base/check.h"

namespace kestrel {
namespace {
constexpr size_t kMapFrom = size_t{1} << 20;
constexpr size_t kHugePage = size_t{2} << 20;
size_t MappedSize(size_t bytes) { return (bytes + 4095) & ~size_t{4095}; }
}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes >= kMapFrom) {
    void* p = mmap(nullptr, MappedSize(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KESTREL_CHECK(p != MAP_FAILED);
    if (bytes >= 2 * kHugePage) madvise(p, MappedSize(bytes), MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(p);
    return;
  }
  data_ = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) & ~size_t{63}));
  KESTREL_CHECK(data_ != nullptr);
  std::memset(data_, 0, bytes);
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ == nullptr) return;
  if (size_ >= kMapFrom) {
    munmap(data_, MappedSize(size_));
  } else {
    std::free(data_);
  }
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace kestrel
