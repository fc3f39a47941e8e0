// Text from token ids as they come: never half a character.
//
//   IncrementalDecoder decoder(tokenizer);
//   for (int32_t id : stream) out << decoder.Push(id);
//   out << decoder.Finish();
//
// Bytes that could still become a character are held back (at most three). Bytes that no longer can become U+FFFD, one
// for each maximal ill-formed part: what is emitted is always valid UTF-8. Special tokens come out by name.
#pragma once

#include <cstdint>
#include <string>

#include "kestrel/text/tokenizer.h"

namespace kestrel {

class IncrementalDecoder {
 public:
  // The tokenizer must outlive the decoder.
  explicit IncrementalDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  // The characters that this token completes. An id outside the vocabulary gives U+FFFD.
  std::string Push(int32_t id);
  // What was held back, as U+FFFD. The decoder is as new afterwards.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  std::string held_;
};

// `bytes` with every maximal ill-formed part replaced by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view bytes);

}  // namespace kestrel
