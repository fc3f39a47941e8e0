#include "kestrel/formats/state_file.h"

#include <cstring>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kestrel/formats/atomic_file.h"

namespace kestrel {
namespace {

// Layout, little-endian: magic, u32 version, u32 sections, u64 fingerprint; for each section u64 name length, u64
// bytes, name, bytes; last, u64 XXH64 of everything before it.
constexpr std::string_view kMagic = "KESTREL\x01";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 24, kChecksumBytes = 8;
constexpr size_t kMaxStateBytes = size_t{1} << 46;
constexpr uint64_t kMaxNameBytes = 256;

tl::unexpected<Error> Corrupt(std::string_view where, const std::string& what) {
  return Err(ErrorCode::kCorrupt, "[formats.state] {}: {}", where, what);
}

template <class T>
T Read(const std::string& bytes, size_t at) {
  T x;
  std::memcpy(&x, bytes.data() + at, sizeof x);
  return x;
}

class HashingWriter {
 public:
  explicit HashingWriter(AtomicFile& file) : file_(file) { XXH64_reset(&hash_, 0); }
  Status Write(std::span<const std::byte> bytes) {
    if (bytes.empty()) return {};
    XXH64_update(&hash_, bytes.data(), bytes.size());
    return file_.Write(bytes);
  }
  template <class T>
  Status Write(const T& x) {
    return Write(std::as_bytes(std::span(&x, 1)));
  }
  uint64_t digest() const { return XXH64_digest(&hash_); }

 private:
  AtomicFile& file_;
  XXH64_state_t hash_;
};

}  // namespace

Status WriteStateFile(const std::string& path, uint64_t fingerprint, std::span<const StateSection> sections) {
  KESTREL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  HashingWriter out(file);
  KESTREL_RETURN_IF_ERROR(out.Write(std::as_bytes(std::span(kMagic.data(), kMagic.size()))));
  KESTREL_RETURN_IF_ERROR(out.Write(kVersion));
  KESTREL_RETURN_IF_ERROR(out.Write(static_cast<uint32_t>(sections.size())));
  KESTREL_RETURN_IF_ERROR(out.Write(fingerprint));
  for (const StateSection& s : sections) {
    KESTREL_RETURN_IF_ERROR(out.Write(static_cast<uint64_t>(s.name.size())));
    KESTREL_RETURN_IF_ERROR(out.Write(static_cast<uint64_t>(s.bytes.size())));
    KESTREL_RETURN_IF_ERROR(out.Write(std::as_bytes(std::span(s.name.data(), s.name.size()))));
    KESTREL_RETURN_IF_ERROR(out.Write(s.bytes));
  }
  const uint64_t digest = out.digest();
  KESTREL_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(&digest, 1))));
  return file.Commit();
}

Result<StateFile> StateFile::Read(const std::string& path) {
  KESTREL_ASSIGN_OR_RETURN(std::string bytes, ReadWholeFile(path, kMaxStateBytes));
  return Parse(std::move(bytes), path);
}

Result<StateFile> StateFile::Parse(std::string bytes, std::string_view where) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes || bytes.compare(0, kMagic.size(), kMagic) != 0) {
    return Corrupt(where, fmt::format("got {} bytes that do not begin as a state file does", bytes.size()));
  }
  if (const auto version = kestrel::Read<uint32_t>(bytes, 8); version != kVersion) {
    return Err(ErrorCode::kUnsupported, "[formats.state] {}: version, got {}, want {}", where, version, kVersion);
  }
  const size_t end = bytes.size() - kChecksumBytes;
  const uint64_t want = kestrel::Read<uint64_t>(bytes, end), got = XXH64(bytes.data(), end, 0);
  if (got != want)
    return Corrupt(where, fmt::format("checksum, got {:016x}, want {:016x}; the file is damaged or cut", got, want));
  StateFile file;
  file.fingerprint_ = kestrel::Read<uint64_t>(bytes, 16);
  const auto count = kestrel::Read<uint32_t>(bytes, 12);
  size_t at = kHeaderBytes;
  for (uint32_t i = 0; i < count; ++i) {
    if (end - at < 16) return Corrupt(where, fmt::format("section {} of {} is cut", i, count));
    const auto name_bytes = kestrel::Read<uint64_t>(bytes, at), data_bytes = kestrel::Read<uint64_t>(bytes, at + 8);
    at += 16;
    if (name_bytes > kMaxNameBytes || name_bytes > end - at || data_bytes > end - at - name_bytes) {
      return Corrupt(
          where, fmt::format("section {}: got {} and {} bytes, more than the file holds", i, name_bytes, data_bytes));
    }
    const std::string name = bytes.substr(at, name_bytes);
    at += name_bytes;
    if (!file.sections_.emplace(name, Range{at, data_bytes}).second) return Corrupt(where, "a section is there twice");
    at += data_bytes;
  }
  if (at != end) return Corrupt(where, fmt::format("{} bytes trail the last section", end - at));
  file.bytes_ = std::move(bytes);
  return file;
}

std::optional<std::span<const std::byte>> StateFile::Find(std::string_view name) const {
  const auto it = sections_.find(name);
  if (it == sections_.end()) return std::nullopt;
  return std::as_bytes(std::span(bytes_.data() + it->second.begin, it->second.size));
}

}  // namespace kestrel
