// Text from a file, made fit for a message: one line, short, no control characters, no broken UTF-8.
//
//   return Err(ErrorCode::kCorrupt, "[formats.index] {}: tensor '{}' is there twice", where, Shown(name));
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kestrel {

// At most max_bytes of the text, "..." where it was cut; control characters as \xNN, broken UTF-8 as '?'.
std::string Shown(std::string_view text, size_t max_bytes = 200);

}  // namespace kestrel
