#include "kestrel/formats/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kestrel/formats/mapped_file.h"

namespace kestrel {
namespace {
// Some systems refuse or cut a single write of 2 GiB or more.
constexpr size_t kMaxWrite = size_t{1} << 30;

tl::unexpected<Error> IoError(const std::string& path, const char* what) {
  return Err(ErrorCode::kIo, "[formats.write] {}: {}: {}", path, what, std::strerror(errno));
}
}  // namespace

Result<AtomicFile> AtomicFile::Create(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Err(ErrorCode::kIo, "[formats.write] {}: got something that is no regular file, want a file or a free name",
               path);
  }
  AtomicFile file;
  file.path_ = path;
  file.temporary_ = path + ".tmp" + std::to_string(getpid());
  file.fd_ = open(file.temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file.fd_ < 0) return IoError(path, "can't be created");
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      written_(other.written_) {}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

Status AtomicFile::WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd_, bytes.data(), std::min(bytes.size(), kMaxWrite), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n == 0) errno = ENOSPC;
      return IoError(path_, fmt::format("{} bytes at {} can't be written", bytes.size(), offset).c_str());
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return {};
}

Status AtomicFile::Write(std::span<const std::byte> bytes) {
  KESTREL_RETURN_IF_ERROR(WriteAt(written_, bytes));
  written_ += bytes.size();
  return {};
}

Status AtomicFile::WriteZeros(size_t count) {
  constexpr std::array<std::byte, 4096> kZeros{};
  for (; count > 0; count -= std::min(count, kZeros.size())) {
    KESTREL_RETURN_IF_ERROR(Write(std::span(kZeros).first(std::min(count, kZeros.size()))));
  }
  return {};
}

Status AtomicFile::Commit() {
  if (fsync(fd_) != 0) return IoError(path_, "can't be flushed");
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
    const auto error = IoError(path_, "can't be put in its place");
    unlink(temporary_.c_str());
    return error;
  }
  return {};
}

Status WriteTextFile(const std::string& path, std::string_view text) {
  KESTREL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  KESTREL_RETURN_IF_ERROR(file.Write(text));
  return file.Commit();
}

Result<std::string> ReadWholeFile(const std::string& path, size_t max_bytes) {
  KESTREL_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path, "formats.read"));
  const size_t size = file.bytes().size();
  if (size > max_bytes) {
    return Err(ErrorCode::kCorrupt, "[formats.read] {}: size, got {} bytes, want at most {}", path, size, max_bytes);
  }
  return std::string(file.text());
}

}  // namespace kestrel
