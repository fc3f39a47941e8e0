#include "kestrel/formats/json.h"

#include <set>
#include <vector>

namespace kestrel {

Result<nlohmann::ordered_json> ParseStrictJson(std::string_view text, std::string_view where) {
  using nlohmann::ordered_json;
  // Nesting is counted before parsing: the parser's own callbacks come too late for 100 000 brackets.
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) {
        return Err(ErrorCode::kCorrupt, "[formats.json] {}: nesting at byte {}, got more than {} levels", where, i,
                   kMaxJsonDepth);
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  const auto watch = [&](int, ordered_json::parse_event_t event, ordered_json& parsed) {
    if (event == ordered_json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == ordered_json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == ordered_json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && duplicate.empty()) duplicate = key;
    }
    return true;
  };
  try {
    ordered_json result = ordered_json::parse(text.begin(), text.end(), watch);
    if (!duplicate.empty()) {
      return Err(ErrorCode::kCorrupt, "[formats.json] {}: key '{}' is there twice", where, duplicate.substr(0, 80));
    }
    return result;
  } catch (const ordered_json::exception& error) {
    std::string what = error.what();
    for (char& c : what) c = c == '\n' ? ' ' : c;
    return Err(ErrorCode::kCorrupt, "[formats.json] {}: {}", where, what.substr(0, 200));
  }
}

}  // namespace kestrel
