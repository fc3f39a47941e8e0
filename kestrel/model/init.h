// A fresh model in the published layout: config.json, generation_config.json and the weights, at their initial values
// (spec 05). The same seed gives the same bytes whatever the number of threads.
//
//   KESTREL_ASSIGN_OR_RETURN(const ModelConfig config, PresetConfig("nano"));
//   KESTREL_RETURN_IF_ERROR(InitCheckpoint(pool, "models/nano", config, /*seed=*/0, {}));
#pragma once

#include <cstdint>
#include <string>

#include "kestrel/base/result.h"
#include "kestrel/base/thread_pool.h"
#include "kestrel/formats/model_config.h"
#include "kestrel/formats/sharded_writer.h"
#include "kestrel/model/run_parts.h"

namespace kestrel {

// kInvalidArgument where the config contradicts itself or `folder` holds something; kIo from the disk. Nothing is left
// behind on an error.
Status InitCheckpoint(ThreadPool& pool, const std::string& folder, const ModelConfig& config, uint64_t seed,
                      const ByteProgress& progress, uint64_t shard_bytes = kShardBytes);

// A preset with seed 0, for the benches.
Status InitPreset(const std::string& folder, const std::string& preset);

}  // namespace kestrel
