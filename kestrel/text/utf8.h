// UTF-8, one character at a time, from bytes that may be anything.
//
//   for (size_t i = 0; i < text.size();) { const Utf8Char c = DecodeUtf8(text, i); i += c.length; }
//
// Ill-formed input never fails: the longest prefix that could still have begun a character counts as one character
// U+FFFD of `length` bytes (Unicode 15, section 3.9, "maximal subparts"), so that no byte is lost and cuts are stable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kestrel {

struct Utf8Char {
  uint32_t code_point;
  uint8_t length;  // bytes taken, 1 to 4
  bool valid;
  bool truncated;  // not valid, but more bytes could have made it so
};

// text[at] must exist.
inline Utf8Char DecodeUtf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1, true, false};
  const int want = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return {0xfffd, 1, false, false};
  uint32_t code_point = first & (0x7fu >> want);
  for (int i = 1; i < want; ++i) {
    if (at + i >= text.size()) return {0xfffd, static_cast<uint8_t>(i), false, true};
    // The second byte is bounded: no overlong forms (e0, f0), no surrogates (ed), nothing above U+10FFFF (f4).
    const uint8_t low = i > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const uint8_t high = i > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte(i) < low || byte(i) > high) return {0xfffd, static_cast<uint8_t>(i), false, false};
    code_point = (code_point << 6) | (byte(i) & 0x3fu);
  }
  return {code_point, static_cast<uint8_t>(want), true, false};
}

inline void AppendUtf8(uint32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xc0 | (c >> 6)), static_cast<char>(0x80 | (c & 63))};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xe0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 63)),
            static_cast<char>(0x80 | (c & 63))};
  } else {
    out += {static_cast<char>(0xf0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 63)),
            static_cast<char>(0x80 | ((c >> 6) & 63)), static_cast<char>(0x80 | (c & 63))};
  }
}

}  // namespace kestrel
