#include "apps/common.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "kestrel/base/clock.h"

namespace kestrel {
namespace {
constexpr double kQuietSeconds = 2;
constexpr double kLineSeconds = 5;
constexpr double kBarSeconds = 0.1;
constexpr int kBarWidth = 32;
}  // namespace

int Fail(const Error& error) {
  fmt::print(stderr, "kestrel: {}\n", error.message);
  return 1;
}

Progress::Progress(std::string label, double total)
    : label_(std::move(label)), total_(total), start_(NowSeconds()), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_ && terminal_) fmt::print(stderr, "\n");
}

void Progress::Update(double done) {
  const double now = NowSeconds();
  if (now - start_ < kQuietSeconds || now - last_ < (terminal_ ? kBarSeconds : kLineSeconds)) return;
  last_ = now;
  shown_ = true;
  const double part = std::clamp(total_ > 0 ? done / total_ : 0.0, 0.0, 1.0);
  const double left = part > 0 ? (now - start_) * (1 - part) / part : 0;
  if (terminal_) {
    const int filled = static_cast<int>(part * kBarWidth);
    fmt::print(stderr, "\r{} [{:=<{}}{: <{}}] {:3.0f} %  {:.0f} s left ", label_, "", filled, "", kBarWidth - filled,
               part * 100, left);
    std::fflush(stderr);
  } else {
    fmt::print(stderr, "{}: {:.0f} %, {:.0f} s left\n", label_, part * 100, left);
  }
}

void RuntimeOptions::AddTo(CLI::App* app) {
  app->add_option("--threads", threads, "threads to use (default: the physical cores)")->check(CLI::Range(1, 1024));
  app->add_option("--matmul", matmul, "round matmul inputs to bf16 (fast) or keep f32 (exact)")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
}

Runtime::Runtime(const RuntimeOptions& options)
    : pool_(options.threads > 0 ? options.threads : PhysicalCores()), context_{pool_, arena_} {
  context_.matmul = options.matmul == "f32" ? MatMulMode::kF32 : MatMulMode::kBf16;
}

Result<std::vector<int32_t>> ParseIds(const std::string& text) {
  std::vector<int32_t> ids;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const auto first = part.find_first_not_of(' ');
    const auto last = part.find_last_not_of(' ');
    int32_t id = 0;
    const char* end = part.data() + (first == std::string::npos ? 0 : last + 1);
    const auto [stop, error] = std::from_chars(part.data() + (first == std::string::npos ? 0 : first), end, id);
    if (error != std::errc() || stop != end) {
      return Err(ErrorCode::kInvalidArgument, "[apps.ids] --ids: got '{}', want whole numbers separated by commas",
                 part);
    }
    ids.push_back(id);
  }
  return ids;
}

Result<std::string> ReadTextFile(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::ifstream in(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (!in.is_open() || in.bad()) {
    return Err(ErrorCode::kIo, "[apps.read] {}: {}; want a readable file", path, std::strerror(errno));
  }
  return text;
}

Status WriteOut(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return Err(ErrorCode::kIo, "[apps.write] standard output: {}", std::strerror(errno));
  }
  return {};
}

}  // namespace kestrel
