// What the tests of formats share: a folder of their own, whole files, and errors that must be one line.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "kestrel/base/result.h"

namespace kestrel::formats_test {

namespace fs = std::filesystem;

inline std::string ReadAll(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void WriteAll(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Refused with this code, in one printable line that begins with [room.op] and has every one of the words.
template <class T>
void ExpectError(const Result<T>& result, ErrorCode code, std::initializer_list<std::string_view> words) {
  ASSERT_FALSE(result.has_value());
  const std::string& message = result.error().message;
  EXPECT_EQ(static_cast<int>(result.error().code), static_cast<int>(code)) << message;
  EXPECT_EQ(message.rfind('[', 0), 0u) << message;
  EXPECT_LT(message.size(), 1000u) << message;
  EXPECT_TRUE(std::none_of(message.begin(), message.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
      << message;
  for (const std::string_view word : words) EXPECT_NE(message.find(word), std::string::npos) << word << "\n" << message;
}

class FolderTest : public testing::Test {
 protected:
  FolderTest()
      : dir_(fs::path(testing::TempDir()) / ("kestrel_formats_" + std::to_string(getpid()) + "_" +
                                             testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  ~FolderTest() override { fs::remove_all(dir_); }
  std::string Path(const std::string& name) const { return (dir_ / name).string(); }
  size_t Entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()));
  }

  fs::path dir_;
};

// While this lives no file of this process grows past `bytes`: a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit = {bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

// The bytes of a safetensors file from its header's text and the size of its data part.
inline std::string FileBytes(std::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out.append(header).append(data_bytes, '\x01');
}

}  // namespace kestrel::formats_test
