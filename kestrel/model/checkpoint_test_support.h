// What the tests of init, quantize and verify share: a folder of their own, files as bytes, small configs.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "kestrel/base/thread_pool.h"
#include "kestrel/formats/checkpoint.h"
#include "kestrel/model/init.h"
#include "kestrel/model/presets.h"

namespace kestrel::test {

namespace fs = std::filesystem;

inline std::string ReadAll(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void WriteAll(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// File name -> bytes.
inline std::map<std::string, std::string> FolderBytes(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& e : fs::directory_iterator(folder)) out[e.path().filename().string()] = ReadAll(e.path());
  return out;
}

// A preset with settings. The test fails where one is refused.
inline ModelConfig Config(std::string_view preset, std::initializer_list<const char*> settings = {}) {
  Result<ModelConfig> config = PresetConfig(preset);
  EXPECT_TRUE(config) << preset;
  for (const char* s : settings) EXPECT_TRUE(ApplySetting(*config, s)) << s;
  return *config;
}

class FolderTest : public testing::Test {
 protected:
  FolderTest()
      : dir_(fs::path(testing::TempDir()) / ("kestrel_model_" + std::to_string(getpid()) + "_" +
                                             testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  ~FolderTest() override { fs::remove_all(dir_); }
  std::string Path(const std::string& name) const { return (dir_ / name).string(); }

  std::string Make(const std::string& name, const ModelConfig& config, uint64_t seed = 0,
                   uint64_t shard = kShardBytes) {
    const Status status = InitCheckpoint(pool_, Path(name), config, seed, {}, shard);
    EXPECT_TRUE(status) << status.error().message;
    return Path(name);
  }

  fs::path dir_;
  ThreadPool pool_{2};
};

// Where a tensor's bytes begin in its file, to damage them.
inline uint64_t PlaceInFile(const std::string& path, const std::string& tensor) {
  const Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file);
  const TensorEntry* t = file->Find(tensor);
  EXPECT_NE(t, nullptr) << tensor;
  return file->file_bytes() - file->tensors().back().end + t->begin;
}

inline void Overwrite(const std::string& path, uint64_t at, std::string_view bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(at));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace kestrel::test
