#include "kestrel/formats/checkpoint.h"

#include <filesystem>

#include "kestrel/base/check.h"
#include "kestrel/formats/index_file.h"

namespace kestrel {
namespace fs = std::filesystem;

namespace {

// A shard must be a plain name, and lie in the folder even after links are followed. (Links inside a folder are how
// model hubs store files; what they point to is not ours to judge unless it is the index that leads out by name.)
Status CheckShardName(const std::string& folder, const std::string& name) {
  const bool plain = !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
                     name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
  if (!plain) {
    return Err(ErrorCode::kCorrupt,
               "[formats.checkpoint] {}: index names shard '{}', want a plain file name in the folder", folder,
               name.substr(0, 120));
  }
  const fs::path path = fs::path(folder) / name;
  std::error_code error;
  if (!fs::exists(path, error)) {
    return Err(ErrorCode::kNotFound, "[formats.checkpoint] {}: shard is missing", path.string());
  }
  if (fs::is_symlink(path, error)) {
    const fs::path inside = fs::canonical(folder, error), target = fs::canonical(path, error);
    if (error || target.parent_path() != inside) {
      return Err(ErrorCode::kCorrupt, "[formats.checkpoint] {}: a link that leads out of the folder, want a file in it",
                 path.string());
    }
  }
  return {};
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const std::string& folder) {
  Checkpoint out;
  const fs::path index_path = fs::path(folder) / "model.safetensors.index.json";
  std::vector<std::string> names = {"model.safetensors"};
  std::optional<IndexFile> index;
  if (fs::exists(index_path)) {
    KESTREL_ASSIGN_OR_RETURN(index, IndexFile::Read(index_path.string()));
    names = index->shards();
  } else if (!fs::exists(fs::path(folder) / names[0])) {
    return Err(ErrorCode::kNotFound,
               "[formats.checkpoint] {}: got neither model.safetensors nor model.safetensors.index.json", folder);
  }
  out.shards_.reserve(names.size());
  for (const std::string& name : names) {
    KESTREL_RETURN_IF_ERROR(CheckShardName(folder, name));
    KESTREL_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open((fs::path(folder) / name).string()));
    out.shards_.push_back(std::move(file));
  }
  for (size_t s = 0; s < out.shards_.size(); ++s) {
    for (const TensorEntry& t : out.shards_[s].tensors()) {
      const auto [it, fresh] = out.places_.emplace(t.name, Place{static_cast<int>(s), &t});
      if (!fresh) {
        return Err(ErrorCode::kCorrupt, "[formats.checkpoint] {}: tensor '{}' is in {} and in {}", folder, t.name,
                   names[static_cast<size_t>(it->second.shard)], names[s]);
      }
    }
  }
  if (!index) return out;
  for (size_t i = 0; i < index->size(); ++i) {
    const auto it = out.places_.find(index->name(i));
    const std::string& shard = names[static_cast<size_t>(index->shard(i))];
    if (it == out.places_.end() || it->second.shard != index->shard(i)) {
      return Err(ErrorCode::kCorrupt, "[formats.checkpoint] {}: index says that tensor '{}' is in {}, got it {}",
                 folder, index->name(i), shard,
                 it == out.places_.end() ? "nowhere" : "in " + names[static_cast<size_t>(it->second.shard)]);
    }
  }
  if (index->size() != out.places_.size()) {
    for (const auto& [name, place] : out.places_) {
      if (!index->Contains(name)) {
        return Err(ErrorCode::kCorrupt, "[formats.checkpoint] {}: tensor '{}' of {} is not in the index", folder, name,
                   names[static_cast<size_t>(place.shard)]);
      }
    }
  }
  return out;
}

const TensorEntry* Checkpoint::Find(std::string_view name) const {
  const auto it = places_.find(name);
  return it == places_.end() ? nullptr : it->second.entry;
}

TensorView Checkpoint::View(std::string_view name) const {
  const auto it = places_.find(name);
  KESTREL_CHECK(it != places_.end());
  return shards_[static_cast<size_t>(it->second.shard)].View(*it->second.entry);
}

uint64_t Checkpoint::tensor_bytes() const {
  uint64_t total = 0;
  for (const auto& [name, place] : places_) total += place.entry->end - place.entry->begin;
  return total;
}

}  // namespace kestrel
