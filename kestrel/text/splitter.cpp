#include "kestrel/text/splitter.h"

#include "kestrel/text/unicode_class.h"
#include "kestrel/text/utf8.h"

namespace kestrel {
namespace {

// One alternative after the other on a fixed text. Positions are byte offsets; 0 as a result means "does not match".
class Matcher {
 public:
  Matcher(std::string_view text, const uint8_t* classes) : text_(text), classes_(classes) {}

  size_t Match() const {
    const Step first = At(0);
    if (first.bits & kHan) return Run(0, kHan);
    if (!(first.bits & (kNewline | kNumber)) || (first.bits & kLetter)) {
      if (const size_t end = Word(first)) return end;
    }
    if (first.bits & kNumber) return Number(first);
    if (const size_t end = Symbols(first)) return end;
    return White();
  }

 private:
  struct Step {
    uint8_t bits;
    uint8_t length;  // 0 at the end of the text
  };

  Step At(size_t at) const {
    if (at >= text_.size()) return {0, 0};
    const auto byte = static_cast<uint8_t>(text_[at]);
    if (byte < 0x80) return {classes_[byte], 1};
    const Utf8Char c = DecodeUtf8(text_, at);
    return {classes_[c.code_point], c.length};
  }

  // End of the longest run of characters in `mask` from `at`.
  size_t Run(size_t at, uint8_t mask) const {
    for (Step s = At(at); s.bits & mask; s = At(at)) at += s.length;
    return at;
  }

  // Alternatives 2 and 3, each first with the optional leading character, then without.
  size_t Word(Step first) const {
    const bool may_lead = !(first.bits & (kNewline | kLetter | kNumber));
    const bool is_word = first.bits & (kUpperOrCaseless | kLowerOrCaseless);  // a mark can be both
    size_t end = may_lead ? LowerWord(first.length) : 0;
    if (!end && is_word) end = LowerWord(0);
    if (!end && may_lead) end = UpperWord(first.length);
    if (!end && is_word) end = UpperWord(0);
    return end ? Contraction(end) : 0;
  }

  // [UPPER]*[LOWER]+: the star takes all it can, then gives back until a LOWER character follows.
  size_t LowerWord(size_t at) const {
    constexpr size_t kNone = ~size_t{0};
    size_t last_both = kNone;
    Step s = At(at);
    for (; s.bits & kUpperOrCaseless; at += s.length, s = At(at)) {
      if (s.bits & kLowerOrCaseless) last_both = at;
    }
    if (s.bits & kLowerOrCaseless) return Run(at, kLowerOrCaseless);
    return last_both == kNone ? 0 : Run(last_both, kLowerOrCaseless);
  }

  // [UPPER]+[LOWER]*
  size_t UpperWord(size_t at) const {
    const size_t end = Run(at, kUpperOrCaseless);
    return end == at ? 0 : Run(end, kLowerOrCaseless);
  }

  // (?i:'s|'t|'re|'ve|'m|'ll|'d)?; U+017F folds to s.
  size_t Contraction(size_t at) const {
    if (at + 1 >= text_.size() || text_[at] != '\'') return at;
    const auto lower = [&](size_t i) { return i < text_.size() ? static_cast<char>(text_[i] | 0x20) : '\0'; };
    const char a = lower(at + 1), b = lower(at + 2);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
    if (text_.substr(at + 1, 2) == "\u017f") return at + 3;
    return at;
  }

  size_t Number(Step first) const {
    size_t at = first.length;
    for (int i = 1; i < 3; ++i) {
      const Step s = At(at);
      if (!(s.bits & kNumber)) break;
      at += s.length;
    }
    return at;
  }

  //  ?[^\s\p{L}\p{N}]+[\r\n]*
  size_t Symbols(Step first) const {
    const size_t begin = text_[0] == ' ' ? first.length : 0;
    size_t at = begin;
    for (Step s = At(at); s.length && !(s.bits & (kSpace | kLetter | kNumber)); s = At(at)) at += s.length;
    return at == begin ? 0 : Run(at, kNewline);
  }

  // The last three alternatives on one run of white space: up to its last newline; else all of it at the end of the
  // text; else all but the last character, which goes with what follows.
  size_t White() const {
    size_t at = 0, last = 0, after_newline = 0;
    for (Step s = At(0); s.bits & kSpace; s = At(at)) {
      last = at;
      at += s.length;
      if (s.bits & kNewline) after_newline = at;
    }
    if (after_newline) return after_newline;
    return at == text_.size() || last == 0 ? at : last;
  }

  std::string_view text_;
  const uint8_t* classes_;
};

}  // namespace

Splitter::Splitter() : classes_(UnicodeClasses()) {}

size_t Splitter::FirstLength(std::string_view text) const { return Matcher(text, classes_).Match(); }

size_t Splitter::FirstCut(std::string_view text, size_t& characters) const {
  constexpr size_t kMaxCharacters = 400'000, kMaxRun = 25'000;
  if (text.size() <= kMaxRun && characters + text.size() <= kMaxCharacters) return text.size();
  size_t run = 0;
  uint8_t run_space = 0;
  for (size_t at = 0; at < text.size();) {
    if (characters == kMaxCharacters) {
      characters = 0;
      return at;
    }
    const auto byte = static_cast<uint8_t>(text[at]);
    const Utf8Char c = byte < 0x80 ? Utf8Char{byte, 1, true, false} : DecodeUtf8(text, at);
    const uint8_t space = classes_[c.code_point] & kPythonSpace;
    run = space == run_space ? run + 1 : 1;
    run_space = space;
    if (run > kMaxRun) return at;
    ++characters;
    at += c.length;
  }
  return text.size();
}

}  // namespace kestrel
