// Pre-tokenisation: where byte-pair merges may not cross. A hand-written matcher of the Kimi regular expression
// (tokenization_kimi.py, eight alternatives, the first that matches wins):
//
//   [\p{Han}]+
//   [^\r\n\p{L}\p{N}]?[UPPER]*[LOWER]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?     UPPER = Lu Lt Lm Lo M without Han
//   [^\r\n\p{L}\p{N}]?[UPPER]+[LOWER]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?     LOWER = Ll Lm Lo M without Han
//   \p{N}{1,3}  |  ?[^\s\p{L}\p{N}]+[\r\n]*  |  \s*[\r\n]+  |  \s+(?!\S)  |  \s+
//
// Ill-formed UTF-8 counts as U+FFFD, a symbol, and keeps its bytes: pieces always join to the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kestrel {

class Splitter {
 public:
  Splitter();
  // Bytes of the first pre-token of `text`, which is not empty. Linear in what it looks at; looks one run ahead.
  size_t FirstLength(std::string_view text) const;
  // Bytes of `text` until the reference cuts it before anything else: into blocks of 400 000 characters, and inside a
  // block where a run of white space or of non-white space passes 25 000. text.size() where no cut is due.
  // `characters` counts the characters of the block so far: begin with 0 and hand it from call to call.
  size_t FirstCut(std::string_view text, size_t& characters) const;

 private:
  const uint8_t* classes_;
};

}  // namespace kestrel
