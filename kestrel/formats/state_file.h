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

namespace kestrel {

struct StateSection {
  std::string name;
  std::span<const std::byte> bytes;
};

// Atomic.
Status WriteStateFile(const std::string& path, uint64_t fingerprint, std::span<const StateSection> sections);

class StateFile {
 public:
  static Result<StateFile> Read(const std::string& path);
  // Errors begin with `where`. Takes the whole file's bytes.
  static Result<StateFile> Parse(std::string bytes, std::string_view where);

  uint64_t fingerprint() const { return fingerprint_; }
  std::optional<std::span<const std::byte>> Find(std::string_view name) const;
  size_t sections() const { return sections_.size(); }

 private:
  struct Range {
    size_t begin, size;
  };
  std::string bytes_;
  uint64_t fingerprint_ = 0;
  std::map<std::string, Range, std::less<>> sections_;
};

}  // namespace kestrel
