// safetensors: eight bytes of header length, a JSON header, then the data (spec 02). Files are mapped, and everything
// the header says is checked before a byte is believed: length, types, shapes (without overflow), offsets in order with
// neither hole nor overlap, nothing after the last tensor.
//
//   KESTREL_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open("model.safetensors"));
//   const TensorView w = file.View(*file.Find("lm_head.weight"));
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kestrel/base/result.h"
#include "kestrel/formats/atomic_file.h"
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

// file_bytes: the whole file's size; bytes: at least its header. Errors begin with `where`.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> bytes, uint64_t file_bytes,
                                                 std::string_view where);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<TensorEntry>& tensors() const { return header_.tensors; }
  const Metadata& metadata() const { return header_.metadata; }
  const TensorEntry* Find(std::string_view name) const;
  TensorView View(const TensorEntry& entry) const;
  uint64_t file_bytes() const { return size_; }

 private:
  SafetensorsFile() = default;
  std::string path_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> by_name_;  // views of header_.tensors' names
  std::byte* map_ = nullptr;
  uint64_t size_ = 0;
};

struct TensorToWrite {
  std::string name;
  Dtype dtype;
  Shape shape;
  std::span<const std::byte> bytes;
};

// Atomic. The tensors keep their order.
Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors, const Metadata& metadata);

// For files larger than memory: sizes first, bytes in any order afterwards.
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
