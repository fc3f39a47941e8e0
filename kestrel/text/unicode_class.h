// The character classes that the pre-tokeniser's regular expression names, one byte of bits for each code point.
//
//   if (UnicodeClasses()[c] & kLetter) ...
//
// unicode_runs.inc is generated (tools/make_unicode_runs.py) from the reference engine; 1.1 MB once unpacked, of which
// a text touches a few pages.
#pragma once

#include <cstdint>

namespace kestrel {

enum UnicodeClass : uint8_t {
  kHan = 1,              // Script=Han: also U+3005, U+3007 and the radicals
  kUpperOrCaseless = 2,  // Lu Lt Lm Lo M, without Han
  kLowerOrCaseless = 4,  // Ll Lm Lo M, without Han
  kLetter = 8,           // L, with Han
  kNumber = 16,          // Nd Nl No
  kSpace = 32,           // White_Space
  kNewline = 64,         // \r \n
  kPythonSpace = 128,    // str.isspace(): kSpace and U+001C to U+001F
};

// [0x110000]
const uint8_t* UnicodeClasses();

}  // namespace kestrel
