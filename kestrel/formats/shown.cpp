#include "kestrel/formats/shown.h"

#include <fmt/format.h>

#include <algorithm>

namespace kestrel {
namespace {

// Length of the UTF-8 sequence that begins here, 0 where there is none.
size_t SequenceLength(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string Shown(std::string_view text, size_t max_bytes) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = SequenceLength(text.substr(i));
    if (i + std::max<size_t>(length, 1) > max_bytes) return out + "...";
    const auto c = static_cast<unsigned char>(text[i]);
    if (length == 0) {
      out += '?';
    } else if (c < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += text.substr(i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  return out;
}

}  // namespace kestrel
