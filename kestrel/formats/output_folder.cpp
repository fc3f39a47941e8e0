#include "kestrel/formats/output_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace kestrel {
namespace fs = std::filesystem;

namespace {

constexpr int kAttempts = 100;  // names left behind by killed processes that had our process id

// So that the rename survives a power cut. Some file systems refuse to flush folders, which is no reason to fail.
void FlushFolder(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)fsync(fd);
  close(fd);
}

}  // namespace

Result<OutputFolder> OutputFolder::Create(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "models/nano/"
  if (folder.empty() || path == path.root_path()) {
    return Err(ErrorCode::kInvalidArgument, "[formats.write] '{}': want the name of a new folder", folder);
  }
  if (fs::exists(fs::symlink_status(path, error))) {
    const bool is_folder = fs::is_directory(fs::symlink_status(path, error));
    if (!is_folder || !fs::is_empty(path, error) || error) {
      return Err(ErrorCode::kInvalidArgument, "[formats.write] {}: got {}, want a free name or an empty folder", folder,
                 is_folder ? "a folder that holds something" : "a file or a link");
    }
  }
  OutputFolder out;
  out.folder_ = path.string();
  for (int i = 0; i < kAttempts; ++i) {
    const std::string name = fmt::format(".{}.tmp{}.{}", path.filename().string(), getpid(), i);
    const std::string temporary = (path.parent_path() / name).string();
    if (mkdir(temporary.c_str(), 0777) == 0) {
      out.temporary_ = temporary;
      return out;
    }
    if (errno != EEXIST) break;
  }
  return Err(ErrorCode::kIo, "[formats.write] {}: can't be created: {}", folder, std::strerror(errno));
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept
    : folder_(std::move(other.folder_)), temporary_(std::exchange(other.temporary_, {})) {}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

Status OutputFolder::Commit() {
  FlushFolder(temporary_);
  // rename(2) puts a folder over an empty one in one step, and refuses any other.
  if (rename(temporary_.c_str(), folder_.c_str()) != 0) {
    return Err(ErrorCode::kIo, "[formats.write] {}: can't be put in its place: {}", folder_, std::strerror(errno));
  }
  temporary_.clear();
  FlushFolder(fs::path(folder_).parent_path());
  return {};
}

}  // namespace kestrel
