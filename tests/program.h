// Runs the program as a user does, for tests: exit code, what it printed, and what it cost.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace kestrel::test {

namespace fs = std::filesystem;

inline std::string ReadAll(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void WriteAll(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

struct Outcome {
  int code;  // minus the signal that ended it
  std::string out, err;
  double cpu_seconds;
  int64_t max_rss_bytes;
};

// A folder of its own, removed at the end.
class ProgramTest : public testing::Test {
 protected:
  ProgramTest()
      : dir_(fs::path(testing::TempDir()) / ("kestrel_program_" + std::to_string(getpid()) + "_" +
                                             testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  ~ProgramTest() override { fs::remove_all(dir_); }
  std::string Path(const std::string& name) const { return (dir_ / name).string(); }

  // `before`: shell commands that set the scene, e.g. "ulimit -f 8; ".
  Outcome Run(const std::string& arguments, const std::string& before = "") const {
    const std::string out = dir_.string() + ".out", err = dir_.string() + ".err";
    const std::string command = before + "exec " + KESTREL_PROGRAM + " " + arguments + " >" + out + " 2>" + err;
    const pid_t child = fork();
    if (child == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    rusage usage{};
    wait4(child, &status, 0, &usage);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    Outcome o{WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), ReadAll(out), ReadAll(err),
              seconds(usage.ru_utime) + seconds(usage.ru_stime), static_cast<int64_t>(usage.ru_maxrss) * 1024};
    fs::remove(out);
    fs::remove(err);
    return o;
  }

  // Exit code 1 and one line on stderr that has the word.
  void ExpectFailure(const std::string& arguments, const std::string& word, const std::string& before = "") const {
    const Outcome o = Run(arguments, before);
    EXPECT_EQ(o.code, 1) << arguments << "\n" << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << arguments << "\n" << o.err;
    EXPECT_EQ(o.err.rfind("kestrel: [", 0), 0u) << arguments << "\n" << o.err;
    EXPECT_NE(o.err.find(word), std::string::npos) << arguments << "\n" << o.err;
  }

  fs::path dir_;
};

}  // namespace kestrel::test
