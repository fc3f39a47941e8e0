// A file that appears whole or not at all: written under a temporary name beside its place, flushed, then renamed.
//
//   KESTREL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create("out.safetensors"));
//   KESTREL_RETURN_IF_ERROR(file.Write(bytes));
//   KESTREL_RETURN_IF_ERROR(file.Commit());   // without it the temporary is removed
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kestrel/base/result.h"

namespace kestrel {

class AtomicFile {
 public:
  // kIo where the folder is missing or not writable, or where the path is there and is not a regular file.
  static Result<AtomicFile> Create(const std::string& path);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  Status Write(std::span<const std::byte> bytes);
  Status Write(std::string_view text) { return Write(std::as_bytes(std::span(text.data(), text.size()))); }
  Status WriteZeros(size_t count);
  // At a place already written or not yet reached; for writers that fill a file from several threads.
  Status WriteAt(uint64_t offset, std::span<const std::byte> bytes);
  Status Commit();

 private:
  AtomicFile() = default;
  std::string path_, temporary_;
  int fd_ = -1;
  uint64_t written_ = 0;
};

// Atomic.
Status WriteTextFile(const std::string& path, std::string_view text);
// kNotFound, kIo, or kCorrupt where it is larger than max_bytes. Pipes, devices and folders are refused.
Result<std::string> ReadWholeFile(const std::string& path, size_t max_bytes);

}  // namespace kestrel
