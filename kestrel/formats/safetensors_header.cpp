#include <algorithm>
#include <bitset>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "kestrel/formats/json.h"
#include "kestrel/formats/safetensors.h"
#include "kestrel/formats/shown.h"

namespace kestrel {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxRank = 16;
constexpr size_t kAlign = 8;  // of the header's length, so that the data begins aligned

template <class... Args>
tl::unexpected<Error> Corrupt(std::string_view where, fmt::format_string<Args...> format, Args&&... args) {
  return Err(ErrorCode::kCorrupt, "[formats.safetensors] {}: {}", where,
             fmt::format(format, std::forward<Args>(args)...));
}

// Takes the header apart as it is read: half a million tensors, or a hundred megabytes of nonsense, never become a
// tree. Depth 1 holds tensors and __metadata__, depth 2 their members, depth 3 the lists shape and data_offsets.
class HeaderReader : public nlohmann::json_sax<ordered_json> {
 public:
  HeaderReader(SafetensorsHeader& out, std::string_view where) : out_(out), where_(where) {}
  Status status;

  bool null() override { return Wrong("null"); }
  bool boolean(bool x) override { return Wrong(x ? "true" : "false"); }
  bool number_integer(int64_t x) override { return Wrong(std::to_string(x)); }
  bool number_float(double, const std::string& text) override { return Wrong(text); }
  bool binary(ordered_json::binary_t&) override { return false; }

  bool number_unsigned(uint64_t x) override {
    if (depth_ != 3) return Wrong(std::to_string(x));
    if (member_ == kOffsets) return offsets_ == 2 ? Wrong("a third number") : (offset_[offsets_++] = x, true);
    if (x > INT64_MAX) return Wrong(std::to_string(x));
    if (entry_.shape.size() == kMaxRank) return Wrong(fmt::format("more than {} extents", kMaxRank));
    entry_.shape.push_back(static_cast<int64_t>(x));
    return true;
  }
  bool string(std::string& text) override {
    if (depth_ == 2 && in_metadata_) return out_.metadata[key_] = std::move(text), true;
    if (depth_ != 2 || member_ != kDtype) return Wrong(fmt::format("'{}'", Shown(text, 40)));
    const std::optional<Dtype> dtype = DtypeFromName(text);
    if (!dtype) return Wrong(fmt::format("'{}'", Shown(text, 40)));
    entry_.dtype = *dtype;
    return true;
  }

  bool start_object(size_t) override {
    if (depth_ >= 2) return Wrong("an object");
    if (++depth_ == 2) Begin();
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1) {
      in_metadata_ = name == "__metadata__";
      entry_ = {std::move(name), Dtype::kU8, {}, 0, 0};
      return true;
    }
    return in_metadata_ ? MetadataKey(name) : Member(name);
  }
  bool end_object() override { return --depth_ == 0 || in_metadata_ || Finish(); }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || member_ == kDtype) return Wrong("a list");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return member_ != kOffsets || offsets_ == 2 || Wrong("fewer than two numbers");
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    return Fail("header: " + JsonErrorText(error));
  }

 private:
  enum { kDtype, kShape, kOffsets, kMembers };

  bool Fail(const std::string& what) {
    if (status) status = Corrupt(where_, "{}", what);
    return false;
  }
  // The value that comes is not what this place wants.
  bool Wrong(const std::string& got) {
    constexpr const char* kNames[] = {"dtype", "shape", "data_offsets"};
    constexpr const char* kWants[] = {"the name of a known type", "a list of whole numbers from 0", "[begin, end]"};
    if (depth_ == 0) return Fail(fmt::format("header: got {}, want an object", got));
    if (depth_ == 1) return Fail(fmt::format("'{}': got {}, want an object", Shown(entry_.name), got));
    if (in_metadata_) return Fail(fmt::format("__metadata__: '{}', got {}, want a string", Shown(key_, 80), got));
    return Fail(
        fmt::format("tensor '{}': {}, got {}, want {}", Shown(entry_.name), kNames[member_], got, kWants[member_]));
  }
  void Begin() {
    seen_.reset();
    offsets_ = 0;
  }
  bool MetadataKey(std::string& name) {
    if (out_.metadata.count(name) > 0) return Fail(fmt::format("__metadata__: '{}' is there twice", Shown(name, 80)));
    key_ = std::move(name);
    return true;
  }
  bool Member(const std::string& name) {
    member_ = name == "dtype" ? kDtype : name == "shape" ? kShape : name == "data_offsets" ? kOffsets : kMembers;
    if (member_ == kMembers || seen_[member_]) {
      return Fail(fmt::format("tensor '{}': key '{}', got it {}, want dtype, shape and data_offsets once",
                              Shown(entry_.name), Shown(name, 80), member_ == kMembers ? "there" : "twice"));
    }
    seen_.set(member_);
    return true;
  }
  // A tensor is complete: its span must be its shape's bytes.
  bool Finish() {
    if (!seen_.all()) {
      return Fail(fmt::format("tensor '{}': got {} keys, want dtype, shape and data_offsets", Shown(entry_.name),
                              seen_.count()));
    }
    entry_.begin = offset_[0];
    entry_.end = offset_[1];
    const Result<uint64_t> bytes = TensorBytes(entry_, where_);
    if (!bytes) return status = tl::unexpected<Error>(bytes.error()), false;
    if (entry_.end < entry_.begin || entry_.end - entry_.begin != *bytes) {
      return Fail(fmt::format("tensor '{}': data_offsets, got [{}, {}], want {} bytes for {} {}", Shown(entry_.name),
                              entry_.begin, entry_.end, *bytes, Name(entry_.dtype), ToString(entry_.shape)));
    }
    out_.tensors.push_back(std::move(entry_));
    return true;
  }

  SafetensorsHeader& out_;
  std::string_view where_;
  int depth_ = 0;
  bool in_metadata_ = false;
  std::string key_;  // of __metadata__
  TensorEntry entry_{{}, Dtype::kU8, {}, 0, 0};
  std::bitset<kMembers> seen_;
  size_t member_ = kDtype, offsets_ = 0;
  uint64_t offset_[2] = {0, 0};
};

// The spans lie end to end from 0 to the data part's last byte. Sorts the tensors by their place.
Status CheckCoverage(SafetensorsHeader& header, uint64_t data_bytes, std::string_view where) {
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t at = 0;
  for (const TensorEntry& t : header.tensors) {
    if (t.begin != at) {
      return Corrupt(where, "tensor '{}': data begins at {}, want {} ({})", Shown(t.name), t.begin, at,
                     t.begin < at ? "it overlaps the one before" : "a hole lies before it");
    }
    at = t.end;
  }
  if (at != data_bytes) {
    return Corrupt(where, "data part: got {} bytes, want {} ({})", data_bytes, at,
                   data_bytes < at ? "the file is truncated" : "bytes trail the last tensor");
  }
  return {};
}

Status CheckNames(const SafetensorsHeader& header, std::string_view where) {
  std::vector<std::string_view> names;
  names.reserve(header.tensors.size());
  for (const TensorEntry& t : header.tensors) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) return Corrupt(where, "tensor '{}' is there twice", Shown(*twice));
  return {};
}

}  // namespace

Result<uint64_t> TensorBytes(const TensorEntry& tensor, std::string_view where) {
  uint64_t bytes = SizeOf(tensor.dtype);
  // A zero among the extents must not hide a product that wraps.
  bool empty = false;
  for (const int64_t extent : tensor.shape) {
    empty |= extent == 0;
    const auto n = static_cast<uint64_t>(std::max<int64_t>(extent, 1));
    if (extent < 0 || __builtin_mul_overflow(bytes, n, &bytes) || bytes > INT64_MAX) {
      return Corrupt(where, "tensor '{}': shape, got {}, want less than 2^63 bytes", Shown(tensor.name),
                     ToString(tensor.shape));
    }
  }
  return empty ? 0 : bytes;
}

Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> bytes, uint64_t file_bytes,
                                                 std::string_view where) {
  uint64_t length = 0;
  if (file_bytes < sizeof length || bytes.size() < sizeof length) {
    return Corrupt(where, "file size, got {} bytes, want at least 8", file_bytes);
  }
  std::memcpy(&length, bytes.data(), sizeof length);
  const uint64_t most = std::min<uint64_t>({kMaxHeaderBytes, file_bytes - 8, bytes.size() - 8});
  if (length > most) return Corrupt(where, "header length, got {}, want at most {}", length, most);
  SafetensorsHeader header;
  header.data_begin = 8 + length;
  HeaderReader reader(header, where);
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + 8;
  const bool whole = ordered_json::sax_parse(text, text + length, &reader);
  if (!whole && reader.status) return Corrupt(where, "header is not JSON");
  KESTREL_RETURN_IF_ERROR(reader.status);
  KESTREL_RETURN_IF_ERROR(CheckCoverage(header, file_bytes - header.data_begin, where));
  KESTREL_RETURN_IF_ERROR(CheckNames(header, where));
  return header;
}

std::string SafetensorsHeaderText(std::span<const TensorEntry> entries, const Metadata& metadata) {
  ordered_json header = ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  // Built as text: an ordered object looks a key up in linear time, and a checkpoint has half a million.
  std::string text = header.dump();
  text.pop_back();
  for (const TensorEntry& t : entries) {
    const ordered_json value = {{"dtype", Name(t.dtype)}, {"shape", t.shape}, {"data_offsets", {t.begin, t.end}}};
    text += (text.size() > 1 ? "," : "") + ordered_json(t.name).dump() + ":" + value.dump();
  }
  text += "}";
  text.append((kAlign - text.size() % kAlign) % kAlign, ' ');
  return text;
}

}  // namespace kestrel
