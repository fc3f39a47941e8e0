#include "kestrel/formats/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kestrel/formats/json.h"

namespace kestrel {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxRank = 16;
constexpr size_t kAlign = 8;  // of the header's length

template <class... Args>
tl::unexpected<Error> Corrupt(std::string_view where, fmt::format_string<Args...> format, Args&&... args) {
  return Err(ErrorCode::kCorrupt, "[formats.safetensors] {}: {}", where,
             fmt::format(format, std::forward<Args>(args)...));
}

Result<uint64_t> Unsigned(const ordered_json& value, std::string_view where, const std::string& tensor,
                          const char* what) {
  if (!value.is_number_unsigned()) {
    return Corrupt(where, "tensor '{}': {}, got {}, want whole numbers from 0", tensor.substr(0, 200), what,
                   value.dump().substr(0, 40));
  }
  return value.get<uint64_t>();
}

// Product of extents and element size, or an error where it does not fit 63 bits.
Result<uint64_t> ByteSize(const TensorEntry& t, std::string_view where) {
  uint64_t bytes = SizeOf(t.dtype);
  for (const int64_t extent : t.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes) || bytes > INT64_MAX) {
      return Corrupt(where, "tensor '{}': shape {}, got more elements than 63 bits can count", t.name,
                     ToString(t.shape));
    }
  }
  return bytes;
}

Result<TensorEntry> ParseEntry(const std::string& name, const ordered_json& value, std::string_view where) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    return Corrupt(where, "tensor '{}': got {}, want dtype, shape and data_offsets", name.substr(0, 200),
                   value.dump(-1, ' ', false, ordered_json::error_handler_t::replace).substr(0, 80));
  }
  const auto& dtype = value["dtype"];
  const auto known = dtype.is_string() ? DtypeFromName(dtype.get_ref<const std::string&>()) : std::nullopt;
  if (!known)
    return Corrupt(where, "tensor '{}': dtype, got {}, want one that is known", name.substr(0, 200),
                   dtype.dump(-1, ' ', false, ordered_json::error_handler_t::replace).substr(0, 40));
  TensorEntry entry{name, *known, {}, 0, 0};
  const auto& shape = value["shape"];
  if (!shape.is_array() || shape.size() > kMaxRank) {
    return Corrupt(where, "tensor '{}': shape, want a list of at most {} extents", name.substr(0, 200), kMaxRank);
  }
  for (const auto& extent : shape) {
    KESTREL_ASSIGN_OR_RETURN(const uint64_t n, Unsigned(extent, where, name, "shape"));
    if (n > INT64_MAX) return Corrupt(where, "tensor '{}': extent {}, want less than 2^63", name.substr(0, 200), n);
    entry.shape.push_back(static_cast<int64_t>(n));
  }
  const auto& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2)
    return Corrupt(where, "tensor '{}': data_offsets, want [begin, end]", name.substr(0, 200));
  KESTREL_ASSIGN_OR_RETURN(entry.begin, Unsigned(offsets[0], where, name, "data_offsets"));
  KESTREL_ASSIGN_OR_RETURN(entry.end, Unsigned(offsets[1], where, name, "data_offsets"));
  KESTREL_ASSIGN_OR_RETURN(const uint64_t bytes, ByteSize(entry, where));
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    return Corrupt(where, "tensor '{}': data_offsets [{}, {}], want {} bytes for {} {}", name.substr(0, 200),
                   entry.begin, entry.end, bytes, Name(entry.dtype), ToString(entry.shape));
  }
  return entry;
}

Status CheckCoverage(SafetensorsHeader& header, uint64_t data_bytes, std::string_view where) {
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t at = 0;
  for (const TensorEntry& t : header.tensors) {
    if (t.begin != at) {
      return Corrupt(where, "tensor '{}': data begins at {}, want {} ({})", t.name, t.begin, at,
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

std::string HeaderText(const std::vector<TensorEntry>& entries, const Metadata& metadata) {
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

Status WriteHeader(AtomicFile& file, const std::string& text) {
  const uint64_t length = text.size();
  KESTREL_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(&length, 1))));
  return file.Write(text);
}

}  // namespace

// Half a million tensors a file would make one ordered_json slow (its keys are searched in a row), so the header is
// taken apart by a SAX reader that keeps one tensor at a time.
namespace {

class HeaderReader : public nlohmann::json_sax<ordered_json> {
 public:
  HeaderReader(SafetensorsHeader& out, std::string_view where) : out_(out), where_(where) {}
  Status status;

  bool null() override { return Value(nullptr); }
  bool boolean(bool x) override { return Value(x); }
  bool number_integer(int64_t x) override { return Value(x); }
  bool number_unsigned(uint64_t x) override { return Value(x); }
  bool number_float(double x, const std::string&) override { return Value(x); }
  bool string(std::string& x) override { return Value(x); }
  bool binary(ordered_json::binary_t&) override { return false; }
  bool start_object(size_t) override {
    if (depth_ == 0) {
      ++depth_;
      return true;
    }
    return Open(ordered_json::object());
  }
  bool start_array(size_t) override { return depth_ == 0 ? Fail("want an object") : Open(ordered_json::array()); }
  bool key(std::string& name) override {
    if (depth_ == 1) {
      name_ = name;
    } else {
      if (stack_.back().contains(name))
        return Fail(fmt::format("tensor '{}': key '{}' is there twice", name_.substr(0, 200), name.substr(0, 80)));
      keys_.push_back(name);
    }
    return true;
  }
  bool end_object() override {
    if (depth_ == 1) {
      --depth_;
      return true;
    }
    return Close();
  }
  bool end_array() override { return Close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    std::string what = error.what();
    for (char& c : what) c = c == '\n' ? ' ' : c;
    return Fail("header: " + what.substr(0, 160));
  }

 private:
  static constexpr int kMaxDepth = 4;

  bool Fail(const std::string& what) {
    if (status) status = Corrupt(where_, "{}", what);
    return false;
  }
  bool Open(ordered_json value) {
    if (++depth_ > kMaxDepth) return Fail(fmt::format("header: got more than {} levels of nesting", kMaxDepth));
    stack_.push_back(std::move(value));
    return true;
  }
  bool Close() {
    --depth_;
    ordered_json value = std::move(stack_.back());
    stack_.pop_back();
    return Value(std::move(value));
  }
  bool Value(ordered_json value) {
    if (depth_ == 0) return Fail("header: want an object");
    if (depth_ == 1) return Entry(value);
    if (stack_.back().is_array()) {
      if (stack_.back().size() > kMaxRank)
        return Fail(fmt::format("tensor '{}': a list is too long", name_.substr(0, 200)));
      stack_.back().push_back(std::move(value));
    } else {
      stack_.back()[keys_.back()] = std::move(value);
      keys_.pop_back();
    }
    return true;
  }
  bool Entry(const ordered_json& value) {
    if (name_ == "__metadata__") {
      if (!value.is_object()) return Fail("__metadata__: want an object of strings");
      for (const auto& [k, v] : value.items()) {
        if (!v.is_string()) return Fail(fmt::format("__metadata__: '{}', want a string", k.substr(0, 80)));
        out_.metadata[k] = v.get<std::string>();
      }
      return true;
    }
    auto entry = ParseEntry(name_, value, where_);
    if (!entry) {
      if (status) status = tl::unexpected<Error>(entry.error());
      return false;
    }
    out_.tensors.push_back(std::move(*entry));
    return true;
  }

  SafetensorsHeader& out_;
  std::string_view where_;
  int depth_ = 0;
  std::string name_;
  std::vector<std::string> keys_;
  std::vector<ordered_json> stack_;
};

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> bytes, uint64_t file_bytes,
                                                 std::string_view where) {
  uint64_t length = 0;
  if (file_bytes < sizeof length || bytes.size() < sizeof length) {
    return Corrupt(where, "file size, got {} bytes, want at least 8", file_bytes);
  }
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMaxHeaderBytes || length > file_bytes - 8 || length > bytes.size() - 8) {
    return Corrupt(where, "header length, got {}, want at most {}", length, std::min(kMaxHeaderBytes, file_bytes - 8));
  }
  SafetensorsHeader header;
  header.data_begin = 8 + length;
  HeaderReader reader(header, where);
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + 8;
  const bool whole = ordered_json::sax_parse(text, text + length, &reader);
  if (!reader.status) return tl::unexpected<Error>(reader.status.error());
  if (!whole) return Corrupt(where, "header is not JSON");
  KESTREL_RETURN_IF_ERROR(CheckCoverage(header, file_bytes - header.data_begin, where));
  std::unordered_map<std::string_view, int> seen;
  for (const TensorEntry& t : header.tensors) {
    if (!seen.emplace(t.name, 0).second) return Corrupt(where, "tensor '{}' is there twice", t.name);
  }
  return header;
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info {};
  if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    const int error = fd < 0 ? errno : EISDIR;
    if (fd >= 0) close(fd);
    return Err(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
               "[formats.safetensors] {}: {}; want a readable file", path, std::strerror(error));
  }
  SafetensorsFile file;
  file.path_ = path;
  file.size_ = static_cast<uint64_t>(info.st_size);
  if (file.size_ > 0) {
    void* map = mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
      const int error = errno;
      close(fd);
      return Err(ErrorCode::kIo, "[formats.safetensors] {}: can't be mapped: {}", path, std::strerror(error));
    }
    file.map_ = static_cast<std::byte*>(map);
  }
  close(fd);
  KESTREL_ASSIGN_OR_RETURN(file.header_, ParseSafetensorsHeader({file.map_, file.size_}, file.size_, path));
  file.by_name_.reserve(file.header_.tensors.size());
  for (size_t i = 0; i < file.header_.tensors.size(); ++i) file.by_name_.emplace(file.header_.tensors[i].name, i);
  return file;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      header_(std::move(other.header_)),  // the vector's strings stay where they are, so by_name_ stays valid
      by_name_(std::move(other.by_name_)),
      map_(std::exchange(other.map_, nullptr)),
      size_(other.size_) {}

SafetensorsFile::~SafetensorsFile() {
  if (map_ != nullptr) munmap(map_, size_);
}

const TensorEntry* SafetensorsFile::Find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &header_.tensors[it->second];
}

TensorView SafetensorsFile::View(const TensorEntry& entry) const {
  return {entry.dtype, entry.shape, {map_ + header_.data_begin + entry.begin, entry.end - entry.begin}};
}

Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors, const Metadata& metadata) {
  std::vector<TensorEntry> entries;
  for (const TensorToWrite& t : tensors) entries.push_back({t.name, t.dtype, t.shape, 0, 0});
  KESTREL_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path, std::move(entries), metadata));
  for (size_t i = 0; i < tensors.size(); ++i) KESTREL_RETURN_IF_ERROR(writer.WriteTensor(i, tensors[i].bytes));
  return writer.Commit();
}

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path, std::vector<TensorEntry> entries,
                                                    const Metadata& metadata) {
  uint64_t at = 0;
  for (TensorEntry& t : entries) {
    KESTREL_ASSIGN_OR_RETURN(const uint64_t bytes, ByteSize(t, path));
    t.begin = at;
    t.end = at += bytes;
  }
  KESTREL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  SafetensorsWriter writer(std::move(file));
  const std::string text = HeaderText(entries, metadata);
  KESTREL_RETURN_IF_ERROR(WriteHeader(writer.file_, text));
  writer.entries_ = std::move(entries);
  writer.data_begin_ = 8 + text.size();
  return writer;
}

Status SafetensorsWriter::WriteTensor(size_t index, std::span<const std::byte> bytes, uint64_t offset) {
  const TensorEntry& t = entries_[index];
  if (offset > t.end - t.begin || bytes.size() > t.end - t.begin - offset) {
    return Err(ErrorCode::kInvalidArgument, "[formats.safetensors] tensor '{}': got {} bytes at {}, want {} in all",
               t.name, bytes.size(), offset, t.end - t.begin);
  }
  return file_.WriteAt(data_begin_ + t.begin + offset, bytes);
}

}  // namespace kestrel
