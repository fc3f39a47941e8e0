// libFuzzer: the two tokenizer files from any bytes, and any text through a small whole vocabulary. Input: first byte
// even = files (split at the first 0xff), odd = text. Whatever it is: no crash, and encode then decode gives the text
// back.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "kestrel/text/incremental_decoder.h"
#include "kestrel/text/tokenizer.h"

namespace {

std::string Base64(std::string_view in) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < in.size(); i += 3) {
    const auto byte = [&](size_t k) { return i + k < in.size() ? static_cast<uint8_t>(in[i + k]) : uint8_t{0}; };
    const uint32_t word = static_cast<uint32_t>(byte(0) << 16 | byte(1) << 8 | byte(2));
    for (size_t k = 0; k < 4; ++k) out += i + k > in.size() ? '=' : kAlphabet[word >> (18 - 6 * k) & 63];
  }
  return out;
}

// 256 bytes and a few merges.
std::string SmallVocabulary() {
  std::string out;
  int rank = 0;
  const auto add = [&](const std::string& token) { out += Base64(token) + " " + std::to_string(rank++) + "\n"; };
  for (int b = 0; b < 256; ++b) add(std::string(1, static_cast<char>(b)));
  for (const char* token : {"aa", "aaaa", "th", "the", " the", "\n\n", "  ", "\xe4\xb8", "\xe4\xb8\xad", "'s", "<|"})
    add(token);
  return out;
}

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  static const std::string vocabulary = SmallVocabulary();
  if (data[0] % 4 == 0) {
    const size_t cut = std::min(input.find('\xff'), input.size());
    const auto loaded =
        kestrel::Tokenizer::Parse(input.substr(0, cut), input.substr(std::min(cut + 1, input.size())), "fuzz");
    Require(loaded || loaded.error().message.find('\n') == std::string::npos);
  } else if (data[0] % 4 == 2) {
    (void)kestrel::Tokenizer::Parse(vocabulary + std::string(input), "{\"added_tokens_decoder\":{}}", "fuzz");
    (void)kestrel::Tokenizer::Parse(vocabulary, input, "fuzz");
  } else {
    static const auto tokenizer = kestrel::Tokenizer::Parse(
        vocabulary, "{\"added_tokens_decoder\":{\"267\":{\"content\":\"<|open|>\"}}}", "fuzz");
    Require(tokenizer.has_value());
    const auto ids = tokenizer->Encode(input, data[0] % 4 == 1);
    Require(tokenizer->Decode(ids).value() == input);
    kestrel::IncrementalDecoder decoder(*tokenizer);
    std::string text;
    for (const int32_t id : ids) text += decoder.Push(id);
    Require(text + decoder.Finish() == kestrel::ReplaceInvalidUtf8(input));
  }
  return 0;
}
