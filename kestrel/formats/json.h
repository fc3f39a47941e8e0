// Strict JSON for files that come from outside: a depth limit, no duplicate keys, no trailing bytes. Third-party types
// stay inside formats' .cpp files that include this header.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kestrel/base/result.h"

namespace kestrel {

inline constexpr int kMaxJsonDepth = 64;

// `where` begins the message, e.g. the file's path.
Result<nlohmann::ordered_json> ParseStrictJson(std::string_view text, std::string_view where);

}  // namespace kestrel
