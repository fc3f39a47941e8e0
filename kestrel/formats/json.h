// Strict JSON for files that come from outside: a depth limit, no duplicate keys, no trailing bytes, valid UTF-8. Time
// and memory are linear in the text. Third-party types stay inside the .cpp files that include this header.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kestrel/base/result.h"

namespace kestrel {

inline constexpr int kMaxJsonDepth = 64;

// `where` begins the message, e.g. the file's path. kCorrupt for whatever is not strict JSON.
Result<nlohmann::ordered_json> ParseStrictJson(std::string_view text, std::string_view where);

// The parser's own message as part of a line of ours.
std::string JsonErrorText(const std::exception& error);

}  // namespace kestrel
