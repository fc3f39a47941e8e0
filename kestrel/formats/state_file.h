// A container for what a sequence carries: magic, version, fingerprint of the model, named sections, and a 64-bit
// checksum over all of it. Truncated and bit-flipped files are refused before a byte is used.
//
//   KESTREL_RETURN_IF_ERROR(WriteStateFile("a.state", fingerprint, sections));
//   KESTREL_ASSIGN_OR_RETURN(const StateFile file, StateFile::Read("a.state"));
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kestrel/base/result.h"
#include "kestrel/formats/mapped_file.h"

namespace kestrel {

struct StateSection {
  std::string name;
  std::span<const std::byte> bytes;
};

// Atomic.
Status WriteStateFile(const std::string& path, uint64_t fingerprint, std::span<const StateSection> sections);

class StateFile {
 public:
  // The file is mapped for as long as this lives.
  static Result<StateFile> Read(const std::string& path);
  // bytes: the whole file's, which must outlive this. Errors begin with `where`: kCorrupt, kUnsupported for a version.
  static Result<StateFile> Parse(std::span<const std::byte> bytes, std::string_view where);

  uint64_t fingerprint() const { return fingerprint_; }
  std::optional<std::span<const std::byte>> Find(std::string_view name) const;
  size_t sections() const { return sections_.size(); }

 private:
  Status ReadSections(std::span<const std::byte> body, std::string_view where);
  MappedFile map_;  // empty where Parse was given the bytes
  uint64_t fingerprint_ = 0;
  std::map<std::string, std::span<const std::byte>, std::less<>> sections_;
};

}  // namespace kestrel
