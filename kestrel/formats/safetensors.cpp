#include "kestrel/formats/safetensors.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kestrel {
namespace {

// Places the tensors end to end in this sequence. False where one would not begin at a multiple of its element size.
Result<bool> PlaceTensors(std::vector<TensorEntry>& entries, std::span<const size_t> sequence, std::string_view where) {
  uint64_t at = 0;
  bool aligned = true;
  for (const size_t i : sequence) {
    KESTREL_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(entries[i], where));
    aligned &= at % SizeOf(entries[i].dtype) == 0;
    entries[i].begin = at;
    entries[i].end = at += bytes;
  }
  return aligned;
}

// As they come or, where that leaves one unaligned, wide types first: the format allows no hole that would align it.
Status PlaceAligned(std::vector<TensorEntry>& entries, std::string_view where) {
  std::vector<size_t> sequence(entries.size());
  std::iota(sequence.begin(), sequence.end(), size_t{0});
  KESTREL_ASSIGN_OR_RETURN(const bool aligned, PlaceTensors(entries, sequence, where));
  if (aligned) return {};
  std::stable_sort(sequence.begin(), sequence.end(),
                   [&](size_t a, size_t b) { return SizeOf(entries[a].dtype) > SizeOf(entries[b].dtype); });
  KESTREL_RETURN_IF_ERROR(PlaceTensors(entries, sequence, where));
  return {};
}

Status WriteHeader(AtomicFile& file, const std::string& text) {
  const uint64_t length = text.size();
  KESTREL_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(&length, 1))));
  return file.Write(text);
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  KESTREL_ASSIGN_OR_RETURN(file.map_, MappedFile::Open(path, "formats.safetensors"));
  KESTREL_ASSIGN_OR_RETURN(file.header_, ParseSafetensorsHeader(file.map_.bytes(), file.file_bytes(), path));
  file.by_name_.reserve(file.header_.tensors.size());
  for (size_t i = 0; i < file.header_.tensors.size(); ++i) file.by_name_.emplace(file.header_.tensors[i].name, i);
  return file;
}

const TensorEntry* SafetensorsFile::Find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &header_.tensors[it->second];
}

TensorView SafetensorsFile::View(const TensorEntry& entry) const {
  return {entry.dtype, entry.shape, map_.bytes().subspan(header_.data_begin + entry.begin, entry.end - entry.begin)};
}

Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors, const Metadata& metadata) {
  std::vector<TensorEntry> entries;
  for (const TensorToWrite& t : tensors) entries.push_back({t.name, t.dtype, t.shape, 0, 0});
  KESTREL_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path, std::move(entries), metadata));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& t = writer.entries()[i];
    if (tensors[i].bytes.size() != t.end - t.begin) {
      return Err(ErrorCode::kInvalidArgument, "[formats.safetensors] {}: tensor '{}', got {} bytes, want {}", path,
                 t.name, tensors[i].bytes.size(), t.end - t.begin);
    }
    KESTREL_RETURN_IF_ERROR(writer.WriteTensor(i, tensors[i].bytes));
  }
  return writer.Commit();
}

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path, std::vector<TensorEntry> entries,
                                                    const Metadata& metadata) {
  KESTREL_RETURN_IF_ERROR(PlaceAligned(entries, path));
  const std::string text = SafetensorsHeaderText(entries, metadata);
  KESTREL_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  SafetensorsWriter writer(std::move(file));
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
