// Owned, 64-byte aligned memory. Blocks of a megabyte or more come from mmap, zeroed, with huge pages asked for:
// weights are read in streams, and a 4 KiB page each is 400 000 faults for a gigabyte and a half.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kestrel {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Zeroed. bytes may be 0. Aborts only where the operating system has no memory left.
  explicit AlignedBuffer(size_t bytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kestrel
