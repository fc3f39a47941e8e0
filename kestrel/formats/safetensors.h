// safetensors: eight bytes of header length, a JSON header, then the data (spec 02). Files are mapped, and everything
// the header says is checked before a byte is believed: length, types, shapes (without overflow), names once, spans
// that lie end to end with neither hole nor overlap, nothing after the last tensor. safetensors_header.cpp does that.
//
//   KESTREL_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open("model.safetensors"));
//   const TensorView w = file.View(*file.Find("lm_head.weight"));
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kestrel/base/result.h"
#include "kestrel/formats/atomic_file.h"
#include "kestrel/formats/mapped_file.h"
#include "kestrel/tensor/tensor_view.h"

namespace kestrel {

struct TensorEntry {
  std::string name;
  Dtype dtype;
  Shape shape;
  uint64_t begin, end;  // in the data part
};

using Metadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their data
  Metadata metadata;
  uint64_t data_begin = 0;
};

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// file_bytes: the whole file's size; bytes: at least its header. Errors begin with `where`; kCorrupt for each of them.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> bytes, uint64_t file_bytes,
                                                 std::string_view where);

// The header for entries whose spans are set, padded to a multiple of eight bytes.
std::string SafetensorsHeaderText(std::span<const TensorEntry> entries, const Metadata& metadata);

// Elements times element size; kCorrupt where that is not under 2^63.
Result<uint64_t> TensorBytes(const TensorEntry& tensor, std::string_view where);

class SafetensorsFile {
 public:
  // kNotFound or kIo where there is no readable regular file, kCorrupt where it is no safetensors.
  static Result<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<TensorEntry>& tensors() const { return header_.tensors; }
  const Metadata& metadata() const { return header_.metadata; }
  const TensorEntry* Find(std::string_view name) const;
  // Files of other writers may place a tensor at any byte: check before reading through a wider pointer.
  TensorView View(const TensorEntry& entry) const;
  uint64_t file_bytes() const { return map_.bytes().size(); }

 private:
  SafetensorsFile() = default;
  std::string path_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> by_name_;  // views of header_.tensors' names, which survive a move
  MappedFile map_;
};

struct TensorToWrite {
  std::string name;
  Dtype dtype;
  Shape shape;
  std::span<const std::byte> bytes;
};

// Atomic. kInvalidArgument where a tensor's bytes are not as many as its shape wants.
Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors, const Metadata& metadata);

// For files larger than memory: sizes first, bytes in any order afterwards. The header names the tensors in the order
// given; their data lie in that order too, or wide types first where that order would leave one unaligned.
class SafetensorsWriter {
 public:
  // The entries' begin and end are filled in.
  static Result<SafetensorsWriter> Create(const std::string& path, std::vector<TensorEntry> entries,
                                          const Metadata& metadata);
  const std::vector<TensorEntry>& entries() const { return entries_; }
  Status WriteTensor(size_t index, std::span<const std::byte> bytes, uint64_t offset = 0);
  Status Commit() { return file_.Commit(); }

 private:
  SafetensorsWriter(AtomicFile file) : file_(std::move(file)) {}
  AtomicFile file_;
  std::vector<TensorEntry> entries_;
  uint64_t data_begin_ = 0;
};

}  // namespace kestrel
