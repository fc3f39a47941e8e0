// A regular file's bytes, mapped read-only. Anything else under that name (a folder, a pipe, a device) is refused
// without waiting for it.
//
//   KESTREL_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path, "formats.index"));
//   Parse(file.text());
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "kestrel/base/result.h"

namespace kestrel {

class MappedFile {
 public:
  // `op` begins the message: "[op] path: ...". kNotFound where nothing is there, kIo for all that is no readable file.
  static Result<MappedFile> Open(const std::string& path, std::string_view op);
  MappedFile() = default;  // empty
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // They stay where they are when the file is moved.
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kestrel
