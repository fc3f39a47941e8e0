#include "kestrel/text/incremental_decoder.h"

#include <utility>

#include "kestrel/text/utf8.h"

namespace kestrel {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// Moves whole characters from bytes to the result and returns how many bytes were used.
size_t AppendValid(std::string_view bytes, bool at_end, std::string& out) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Char c = DecodeUtf8(bytes, at);
    if (c.truncated && !at_end) break;
    out += c.valid ? bytes.substr(at, c.length) : kReplacement;
    at += c.length;
  }
  return at;
}

}  // namespace

std::string IncrementalDecoder::Push(int32_t id) {
  held_ += id >= 0 && id < tokenizer_->vocab_size() ? tokenizer_->TokenBytes(id) : kReplacement;
  std::string out;
  held_.erase(0, AppendValid(held_, /*at_end=*/false, out));
  return out;
}

std::string IncrementalDecoder::Finish() { return ReplaceInvalidUtf8(std::exchange(held_, {})); }

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string out;
  AppendValid(bytes, /*at_end=*/true, out);
  return out;
}

}  // namespace kestrel
