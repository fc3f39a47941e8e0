#include "kestrel/formats/index_file.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "kestrel/formats/json.h"
#include "kestrel/formats/mapped_file.h"
#include "kestrel/formats/shown.h"

namespace kestrel {

using nlohmann::ordered_json;

namespace {

constexpr size_t kMaxIndexBytes = size_t{1} << 30;  // the release's has 60 MB
constexpr size_t kDropBytes = size_t{4} << 20;      // of mapped text between two calls to the system

// Walks text. Where the text is a mapping, pages that were read leave the resident set, or the release's index would
// add its own 60 MB to the 42 MB of the names.
class TextIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TextIterator(const char* at, bool mapped) : at_(at), drop_at_(mapped ? at + kDropBytes : nullptr) {}
  reference operator*() const { return *at_; }
  TextIterator& operator++() {
    if (++at_ == drop_at_) {
      madvise(const_cast<char*>(at_ - kDropBytes), kDropBytes, MADV_DONTNEED);
      drop_at_ += kDropBytes;
    }
    return *this;
  }
  bool operator==(const TextIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TextIterator& other) const { return at_ != other.at_; }

 private:
  const char *at_, *drop_at_;
};

// A shard is a file of the folder: no index leads out of it.
bool IsPlainName(std::string_view name) {
  constexpr size_t kMaxName = 255;  // of the usual file systems
  constexpr std::string_view kForbidden("/\\\0", 3);
  return !name.empty() && name.size() <= kMaxName && name != "." && name != ".." &&
         name.find_first_of(kForbidden) == std::string_view::npos;
}

}  // namespace

// Depth 1 holds metadata and weight_map, depth 2 what they hold. Anything else is read over.
class IndexReader : public nlohmann::json_sax<ordered_json> {
 public:
  IndexReader(IndexFile& out, std::string_view where) : out_(out), where_(where) {}
  Status status;

  bool null() override { return Scalar(); }
  bool boolean(bool) override { return Scalar(); }
  bool number_integer(int64_t) override { return Scalar(); }
  bool number_unsigned(uint64_t x) override {
    if (depth_ == 2 && section_ == "metadata" && key_ == "total_size") out_.total_size_ = x;
    return Scalar();
  }
  bool number_float(double, const std::string&) override { return Scalar(); }
  bool string(std::string& shard) override { return depth_ == 2 && section_ == "weight_map" ? Add(shard) : Scalar(); }
  bool binary(ordered_json::binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override {
    if (depth_ == 0) return Fail("got a list, want an object");
    return depth_ == 1 && section_ == "weight_map" ? Scalar() : Open();
  }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(std::string& name) override {
    (depth_ == 1 ? section_ : key_) = name;
    if (depth_ == 1 && name == "weight_map" && maps_++ > 0) return Fail("weight_map is there twice");
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    return Fail(JsonErrorText(error));
  }
  bool Fail(const std::string& what) {
    if (status) status = Err(ErrorCode::kCorrupt, "[formats.index] {}: {}", where_, what);
    return false;
  }
  int maps() const { return maps_; }

 private:
  bool Open() {
    if (depth_ == 2 && section_ == "weight_map") return Scalar();
    return ++depth_ <= kMaxJsonDepth || Fail(fmt::format("got more than {} levels of nesting", kMaxJsonDepth));
  }
  bool Scalar() {
    if (depth_ == 0) return Fail("want an object");
    if (section_ != "weight_map") return true;
    return Fail(depth_ == 1 ? std::string("weight_map: want an object")
                            : fmt::format("tensor '{}': want the name of a shard", Shown(key_)));
  }
  bool Add(const std::string& shard) {
    if (key_.size() > UINT16_MAX || out_.names_.size() + key_.size() > UINT32_MAX) return Fail("names are too long");
    const auto [it, fresh] = shard_ids_.emplace(shard, static_cast<int>(shard_ids_.size()));
    if (fresh) {
      if (shard_ids_.size() > UINT16_MAX) return Fail(fmt::format("got more than {} shards", UINT16_MAX));
      if (!IsPlainName(shard)) {
        return Fail(fmt::format("tensor '{}': shard, got '{}', want the plain name of a file in the folder",
                                Shown(key_), Shown(shard, 120)));
      }
      out_.shards_.push_back(shard);
    }
    out_.rows_.push_back({static_cast<uint32_t>(out_.names_.size()), static_cast<uint16_t>(key_.size()),
                          static_cast<uint16_t>(it->second)});
    out_.names_ += key_;
    return true;
  }

  IndexFile& out_;
  std::string_view where_;
  int depth_ = 0, maps_ = 0;
  std::string section_, key_;
  std::unordered_map<std::string, int> shard_ids_;
};

Result<IndexFile> IndexFile::Parse(std::string_view json, std::string_view where) {
  return Parse(json, where, /*mapped=*/false);
}

Result<IndexFile> IndexFile::Parse(std::string_view json, std::string_view where, bool mapped) {
  IndexFile index;
  // Names are part of the text, so the block never grows: growing would hold two copies of it (73 bytes a name in the
  // release). What is reserved and not written to costs no memory.
  index.names_.reserve(json.size());
  IndexReader reader(index, where);
  const bool whole = ordered_json::sax_parse(TextIterator(json.data(), mapped),
                                             TextIterator(json.data() + json.size(), false), &reader);
  if (whole && reader.maps() == 0) reader.Fail("weight_map is missing");
  if (whole && index.rows_.empty()) reader.Fail("weight_map names no tensor");
  if (!whole) reader.Fail("not JSON");
  if (!reader.status) return tl::unexpected<Error>(reader.status.error());
  const auto name = [&](const Row& row) { return std::string_view(index.names_).substr(row.begin, row.length); };
  std::sort(index.rows_.begin(), index.rows_.end(), [&](const Row& a, const Row& b) { return name(a) < name(b); });
  for (size_t i = 1; i < index.rows_.size(); ++i) {
    if (name(index.rows_[i]) == name(index.rows_[i - 1])) {
      return Err(ErrorCode::kCorrupt, "[formats.index] {}: tensor '{}' is there twice", where,
                 Shown(name(index.rows_[i])));
    }
  }
  return index;
}

Result<IndexFile> IndexFile::Read(const std::string& path) {
  KESTREL_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path, "formats.index"));
  if (file.text().size() > kMaxIndexBytes) {
    return Err(ErrorCode::kCorrupt, "[formats.index] {}: size, got {} bytes, want at most {}", path, file.text().size(),
               kMaxIndexBytes);
  }
  return Parse(file.text(), path, /*mapped=*/true);
}

std::optional<size_t> IndexFile::Find(std::string_view wanted) const {
  const auto it = std::lower_bound(rows_.begin(), rows_.end(), wanted, [&](const Row& row, std::string_view x) {
    return std::string_view(names_).substr(row.begin, row.length) < x;
  });
  if (it == rows_.end() || std::string_view(names_).substr(it->begin, it->length) != wanted) return std::nullopt;
  return static_cast<size_t>(it - rows_.begin());
}

}  // namespace kestrel
