#include "kestrel/formats/state_file.h"

#include <cstring>
#if defined(__clang_analyzer__)  // which would report what it imagines inside
#define XXH_STATIC_LINKING_ONLY
#else
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#include "kestrel/formats/atomic_file.h"

namespace kestrel {
namespace {

// Layout, little-endian: magic, u32 version, u32 sections, u64 fingerprint; for each section u64 name length, u64
// bytes, name, bytes; last, u64 XXH64 of everything before it.
constexpr std::string_view kMagic = "KESTREL\x01";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 24, kChecksumBytes = 8;
constexpr uint64_t kMaxNameBytes = 256;

tl::unexpected<Error> Corrupt(std::string_view where, const std::string& what) {
  return Err(ErrorCode::kCorrupt, "[formats.state] {}: {}", where, what);
}

template <class T>
T ReadAt(std::span<const std::byte> bytes, size_t at) {
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
  KESTREL_ASSIGN_OR_RETURN(MappedFile map, MappedFile::Open(path, "formats.state"));
  KESTREL_ASSIGN_OR_RETURN(StateFile file, Parse(map.bytes(), path));
  file.map_ = std::move(map);
  return file;
}

Result<StateFile> StateFile::Parse(std::span<const std::byte> bytes, std::string_view where) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    return Corrupt(where, fmt::format("got {} bytes that do not begin as a state file does", bytes.size()));
  }
  if (const auto version = ReadAt<uint32_t>(bytes, 8); version != kVersion) {
    return Err(ErrorCode::kUnsupported, "[formats.state] {}: version, got {}, want {}", where, version, kVersion);
  }
  const auto body = bytes.first(bytes.size() - kChecksumBytes);
  StateFile file;
  file.fingerprint_ = ReadAt<uint64_t>(bytes, 16);
  // The sections' sizes first: they tell a cut file, of whatever size, without reading all of it.
  KESTREL_RETURN_IF_ERROR(file.ReadSections(body, where));
  const auto want = ReadAt<uint64_t>(bytes, body.size());
  const uint64_t got = XXH64(body.data(), body.size(), 0);
  if (got != want)
    return Corrupt(where, fmt::format("checksum, got {:016x}, want {:016x}; the file is damaged", got, want));
  return file;
}

Status StateFile::ReadSections(std::span<const std::byte> body, std::string_view where) {
  const auto count = ReadAt<uint32_t>(body, 12);
  size_t at = kHeaderBytes;
  for (uint32_t i = 0; i < count; ++i) {
    if (body.size() - at < 16) return Corrupt(where, fmt::format("section {} of {} is cut", i, count));
    const auto name_bytes = ReadAt<uint64_t>(body, at), data_bytes = ReadAt<uint64_t>(body, at + 8);
    at += 16;
    if (name_bytes > kMaxNameBytes || name_bytes > body.size() - at || data_bytes > body.size() - at - name_bytes) {
      return Corrupt(where, fmt::format("section {}: got {} and {} bytes, want at most {} and what the file holds", i,
                                        name_bytes, data_bytes, kMaxNameBytes));
    }
    std::string name(reinterpret_cast<const char*>(body.data()) + at, name_bytes);
    at += name_bytes;
    if (!sections_.emplace(std::move(name), body.subspan(at, data_bytes)).second)
      return Corrupt(where, fmt::format("section {} has the name of one before", i));
    at += data_bytes;
  }
  if (at != body.size())
    return Corrupt(where, fmt::format("got {} bytes after the last section, want 0", body.size() - at));
  return {};
}

std::optional<std::span<const std::byte>> StateFile::Find(std::string_view name) const {
  const auto it = sections_.find(name);
  if (it == sections_.end()) return std::nullopt;
  return it->second;
}

}  // namespace kestrel
