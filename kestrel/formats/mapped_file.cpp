#include "kestrel/formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kestrel {
namespace {

struct OpenedFile {
  int fd;
  size_t bytes;
};

Result<OpenedFile> OpenRegularFile(const std::string& path, std::string_view op) {
  // Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat info {};
  if (fd < 0 || fstat(fd, &info) != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return Err(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "[{}] {}: {}; want a readable file", op, path,
               std::strerror(error));
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return Err(ErrorCode::kIo, "[{}] {}: got a {}, want a readable file", op, path,
               S_ISDIR(info.st_mode)    ? "folder"
               : S_ISFIFO(info.st_mode) ? "pipe"
                                        : "device or socket");
  }
  return OpenedFile{fd, static_cast<size_t>(info.st_size)};
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path, std::string_view op) {
  KESTREL_ASSIGN_OR_RETURN(const OpenedFile opened, OpenRegularFile(path, op));
  MappedFile file;
  file.size_ = opened.bytes;
  void* map = nullptr;  // the system maps no empty file
  if (file.size_ > 0) map = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, opened.fd, 0);
  const int error = errno;
  close(opened.fd);
  if (map == MAP_FAILED) {
    return Err(ErrorCode::kIo, "[{}] {}: {} bytes can't be mapped: {}", op, path, opened.bytes, std::strerror(error));
  }
  file.data_ = static_cast<std::byte*>(map);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace kestrel
