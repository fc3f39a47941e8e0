#include "kestrel/formats/checkpoint.h"

#include <filesystem>

#include "kestrel/base/check.h"
#include "kestrel/formats/index_file.h"
#include "kestrel/formats/shown.h"

namespace kestrel {
namespace fs = std::filesystem;

namespace {

// The index gave a plain name (IndexFile sees to that); a link of that name must not lead out of the folder either.
Status CheckShard(const std::string& folder, const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return Err(ErrorCode::kNotFound, "[formats.checkpoint] {}: shard is missing, want every shard that the index names",
               path.string());
  }
  if (!fs::is_symlink(path, error)) return {};
  const fs::path inside = fs::canonical(folder, error), target = fs::canonical(path, error);
  if (error || target.parent_path() != inside) {
    return Err(ErrorCode::kCorrupt,
               "[formats.checkpoint] {}: got a link that leads out of the folder, want a file in it", path.string());
  }
  return {};
}

// Every name of the index lies in the shard that it says, and no shard holds a name that the index has not.
Status CheckIndex(const std::string& folder, const IndexFile& index, const Checkpoint& checkpoint) {
  const std::vector<std::string>& shards = index.shards();
  for (size_t i = 0; i < index.size(); ++i) {
    const auto it = checkpoint.places().find(index.name(i));
    const bool found = it != checkpoint.places().end();
    if (found && it->second.shard == index.shard(i)) continue;
    return Err(ErrorCode::kCorrupt, "[formats.checkpoint] {}: tensor '{}', got it {}, want it in {} as the index says",
               folder, Shown(index.name(i)),
               found ? "in " + shards[static_cast<size_t>(it->second.shard)] : "in no shard",
               shards[static_cast<size_t>(index.shard(i))]);
  }
  if (index.size() == checkpoint.places().size()) return {};
  for (const auto& [name, place] : checkpoint.places()) {
    if (index.Contains(name)) continue;
    return Err(ErrorCode::kCorrupt,
               "[formats.checkpoint] {}: tensor '{}' of {}, got it nowhere in the index, want it there", folder,
               Shown(name), shards[static_cast<size_t>(place.shard)]);
  }
  return {};
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const std::string& folder) {
  Checkpoint out;
  const fs::path root(folder), index_path = root / "model.safetensors.index.json";
  std::vector<std::string> names = {"model.safetensors"};
  std::optional<IndexFile> index;
  std::error_code error;
  if (fs::exists(index_path, error)) {
    KESTREL_ASSIGN_OR_RETURN(index, IndexFile::Read(index_path.string()));
    names = index->shards();
  } else if (!fs::exists(root / names[0], error)) {
    return Err(ErrorCode::kNotFound,
               "[formats.checkpoint] {}: got neither model.safetensors nor model.safetensors.index.json", folder);
  }
  out.shards_.reserve(names.size());
  for (const std::string& name : names) {
    KESTREL_RETURN_IF_ERROR(CheckShard(folder, root / name));
    KESTREL_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open((root / name).string()));
    out.shards_.push_back(std::move(file));
  }
  KESTREL_RETURN_IF_ERROR(out.Gather(folder));
  if (index) KESTREL_RETURN_IF_ERROR(CheckIndex(folder, *index, out));
  return out;
}

Status Checkpoint::Gather(const std::string& folder) {
  for (size_t s = 0; s < shards_.size(); ++s) {
    for (const TensorEntry& t : shards_[s].tensors()) {
      const auto [it, fresh] = places_.emplace(t.name, Place{static_cast<int>(s), &t});
      if (fresh) continue;
      return Err(ErrorCode::kCorrupt, "[formats.checkpoint] {}: tensor '{}', got it in {} and in {}, want it once",
                 folder, Shown(t.name), shards_[static_cast<size_t>(it->second.shard)].path(), shards_[s].path());
    }
  }
  return {};
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
