#include "kestrel/formats/sharded_writer.h"

#include "kestrel/formats/atomic_file.h"
#include "kestrel/formats/json.h"

namespace kestrel {
Result<ShardedWriter> ShardedWriter::Create(const std::string& folder, const std::vector<TensorEntry>& entries,
                                            const Metadata& metadata, uint64_t shard_bytes) {
  ShardedWriter out;
  out.folder_ = folder;
  std::vector<std::vector<TensorEntry>> shards(1);
  uint64_t filled = 0;
  for (const TensorEntry& t : entries) {
    KESTREL_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(t, folder));
    if (!shards.back().empty() && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    out.places_.push_back({static_cast<uint32_t>(shards.size() - 1), static_cast<uint32_t>(shards.back().size())});
    shards.back().push_back({t.name, t.dtype, t.shape, 0, 0});
    filled += bytes;
    out.tensor_bytes_ += bytes;
  }
  for (size_t s = 0; s < shards.size(); ++s) {
    out.names_.push_back(shards.size() == 1 ? "model.safetensors"
                                            : fmt::format("model-{:05}-of-{:06}.safetensors", s + 1, shards.size()));
    KESTREL_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                             SafetensorsWriter::Create(folder + "/" + out.names_[s], std::move(shards[s]), metadata));
    out.shards_.push_back(std::move(writer));
  }
  return out;
}

Status ShardedWriter::WriteTensor(size_t tensor, std::span<const std::byte> bytes, uint64_t offset) {
  return shards_[places_[tensor].shard].WriteTensor(places_[tensor].index, bytes, offset);
}

Status ShardedWriter::Commit() {
  for (SafetensorsWriter& shard : shards_) KESTREL_RETURN_IF_ERROR(shard.Commit());
  if (shards_.size() == 1) return {};
  nlohmann::json map = nlohmann::json::object();  // sorted; an ordered_json would look through all names for each
  for (const Place& place : places_) {
    map[shards_[place.shard].entries()[place.index].name] = names_[place.shard];
  }
  const nlohmann::json index = {{"metadata", {{"total_size", tensor_bytes_}}}, {"weight_map", std::move(map)}};
  return WriteTextFile(folder_ + "/model.safetensors.index.json", index.dump(1) + "\n");
}

}  // namespace kestrel
