// Writes a checkpoint of any size: model.safetensors where it fits into one shard, else
// model-NNNNN-of-NNNNNN.safetensors and model.safetensors.index.json. Sizes first; bytes in any order afterwards, from
// several threads.
//
//   KESTREL_ASSIGN_OR_RETURN(ShardedWriter writer, ShardedWriter::Create(folder, entries, {{"format", "pt"}}));
//   KESTREL_RETURN_IF_ERROR(writer.WriteTensor(7, bytes, offset));
//   KESTREL_RETURN_IF_ERROR(writer.Commit());
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kestrel/base/result.h"
#include "kestrel/formats/safetensors.h"

namespace kestrel {

inline constexpr uint64_t kShardBytes = 5'000'000'000;  // the hubs' habit

class ShardedWriter {
 public:
  // entries: name, dtype, shape; begin and end are ours. A tensor is never split: one larger than shard_bytes has a
  // shard of its own.
  static Result<ShardedWriter> Create(const std::string& folder, const std::vector<TensorEntry>& entries,
                                      const Metadata& metadata, uint64_t shard_bytes = kShardBytes);

  // tensor: its place in `entries`. Thread-safe for parts that do not overlap.
  Status WriteTensor(size_t tensor, std::span<const std::byte> bytes, uint64_t offset = 0);
  // Puts the shards in their places, then the index.
  Status Commit();
  uint64_t tensor_bytes() const { return tensor_bytes_; }

 private:
  struct Place {
    uint32_t shard, index;
  };
  ShardedWriter() = default;
  std::string folder_;
  std::vector<std::string> names_;  // [shards]
  std::vector<SafetensorsWriter> shards_;
  std::vector<Place> places_;  // [tensors]
  uint64_t tensor_bytes_ = 0;
};

}  // namespace kestrel
