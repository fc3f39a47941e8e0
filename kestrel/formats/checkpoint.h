// A model folder's tensors: one model.safetensors, or the shards that model.safetensors.index.json names (spec 02).
//
//   KESTREL_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open("models/k3"));
//   if (checkpoint.Contains(name)) Use(checkpoint.View(name));
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kestrel/formats/safetensors.h"

namespace kestrel {

class Checkpoint {
 public:
  // Refuses: shard names that are not plain file names, links out of the folder, missing or truncated shards, a tensor
  // in two shards, one that the index names and its shard has not, and the reverse.
  static Result<Checkpoint> Open(const std::string& folder);

  struct Place {
    int shard;
    const TensorEntry* entry;
  };
  bool Contains(std::string_view name) const { return places_.count(name) > 0; }
  const TensorEntry* Find(std::string_view name) const;
  TensorView View(std::string_view name) const;  // the name must be there
  const std::unordered_map<std::string_view, Place>& places() const { return places_; }
  const std::vector<SafetensorsFile>& shards() const { return shards_; }
  uint64_t tensor_bytes() const;

 private:
  Checkpoint() = default;
  Status Gather(const std::string& folder);  // places_ from the shards
  std::vector<SafetensorsFile> shards_;
  std::unordered_map<std::string_view, Place> places_;  // views of the shards' names
};

}  // namespace kestrel
