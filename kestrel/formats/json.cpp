#include "kestrel/formats/json.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include "kestrel/formats/shown.h"

namespace kestrel {
namespace {

using nlohmann::ordered_json;

// Builds the value from the parser's events. The library's own builder looks each key up among all before it, which
// is hours for an object that fills a 16 MB file, and checks neither depth nor duplicates.
class TreeBuilder : public nlohmann::json_sax<ordered_json> {
 public:
  std::string error;  // what is wrong, empty where nothing is
  ordered_json root;

  bool null() override { return Value(nullptr); }
  bool boolean(bool x) override { return Value(x); }
  bool number_integer(int64_t x) override { return Value(x); }
  bool number_unsigned(uint64_t x) override { return Value(x); }
  bool number_float(double x, const std::string&) override { return Value(x); }
  bool string(std::string& x) override { return Value(std::move(x)); }
  bool binary(ordered_json::binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(ordered_json::object()); }
  bool start_array(size_t) override { return Open(ordered_json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    Level& level = open_.back();
    if (!level.keys.insert(name).second) return Fail(fmt::format("key '{}' is there twice", Shown(name, 80)));
    level.key = std::move(name);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    return Fail(JsonErrorText(e));
  }

 private:
  struct Level {
    ordered_json value;
    std::string key;  // of the member that comes next
    std::unordered_set<std::string> keys;
  };

  bool Fail(std::string what) {
    error = std::move(what);
    return false;
  }
  bool Open(ordered_json value) {
    if (open_.size() >= static_cast<size_t>(kMaxJsonDepth))
      return Fail(fmt::format("nesting, got more than {} levels", kMaxJsonDepth));
    open_.push_back({std::move(value), {}, {}});
    return true;
  }
  bool Close() {
    ordered_json value = std::move(open_.back().value);
    open_.pop_back();
    return Value(std::move(value));
  }
  bool Value(ordered_json value) {
    if (open_.empty()) {
      root = std::move(value);
    } else if (Level& level = open_.back(); level.value.is_array()) {
      level.value.push_back(std::move(value));
    } else {
      // As the vector it is: its own emplace would search.
      std::vector<std::pair<const std::string, ordered_json>>& members = level.value.get_ref<ordered_json::object_t&>();
      members.emplace_back(std::move(level.key), std::move(value));
    }
    return true;
  }

  std::vector<Level> open_;
};

}  // namespace

std::string JsonErrorText(const std::exception& error) { return Shown(error.what(), 200); }

Result<ordered_json> ParseStrictJson(std::string_view text, std::string_view where) {
  TreeBuilder builder;
  const bool whole = ordered_json::sax_parse(text.begin(), text.end(), &builder);
  if (!whole) return Err(ErrorCode::kCorrupt, "[formats.json] {}: {}", where, builder.error);
  return std::move(builder.root);
}

}  // namespace kestrel
