// What every command shares: errors to stderr with exit code 1, progress, thread and mode options, a ready Context.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "kestrel/base/result.h"
#include "kestrel/tensor/context.h"

namespace kestrel {

// Exit codes: 0 done, 1 failed (one line on stderr), 2 wrong usage.
int Fail(const Error& error);

// Progress of long work on stderr, silent for the first two seconds: a bar on a terminal, a line every five seconds
// elsewhere. Update from one thread.
class Progress {
 public:
  Progress(std::string label, double total);
  ~Progress();
  void Update(double done);

 private:
  std::string label_;
  double total_, start_, last_ = 0;
  bool terminal_, shown_ = false;
};

// --threads, --matmul.
struct RuntimeOptions {
  int threads = 0;  // 0: the physical cores
  std::string matmul = "bf16";
  void AddTo(CLI::App* app);
};

// Owns what a Context refers to.
class Runtime {
 public:
  explicit Runtime(const RuntimeOptions& options);
  Context& context() { return context_; }

 private:
  ThreadPool pool_;
  Arena arena_;
  Context context_;
};

// "1,2,3" -> ids.
Result<std::vector<int32_t>> ParseIds(const std::string& text);
Result<std::string> ReadTextFile(const std::string& path);  // "-" is standard input
// Prints to standard output; an error where it can't be written (a full disk, a closed pipe).
Status WriteOut(std::string_view text);

}  // namespace kestrel
