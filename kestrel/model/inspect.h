// What a model folder holds and what running it costs, from the config and the names and headers alone: no weight is
// read, and shards may be absent (then sizes follow from the config).
//
//   KESTREL_ASSIGN_OR_RETURN(const Inspection it, Inspect("models/k3", 32768));
//   fmt::print("{} of {} parameters\n", it.text.active, it.text.parameters);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kestrel/formats/model_config.h"
#include "kestrel/model/tensor_names.h"

namespace kestrel {

// Of a set of tensors. Active: what one token multiplies by, so k of E routed experts and one row of the embedding.
struct TensorTotals {
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t active = 0;
  uint64_t bytes = 0;       // as stored
  uint64_t read_bytes = 0;  // of them, read to decode one token
};

struct ComponentTotals {
  Component component;
  TensorTotals totals;
};

struct LayerSummary {
  bool kda = false, moe = false;
  int block = -1;  // of Attention Residuals; -1 without
  TensorTotals totals;
};

// Names that need a person's look: how many, and the first few.
struct NameList {
  int64_t count = 0;
  std::vector<std::string> first;
};

// What a sequence carries. "Kept" is what this program allocates, with the matmul mode bf16.
struct StateCosts {
  uint64_t kda_matrices = 0;  // float32 [H, d, d] of all KDA layers: the architecture's own number
  uint64_t kda_kept = 0;      // those, and the rows since the last fold (kernels/kda/kda.h)
  uint64_t conv_kept = 0;     // the last width - 1 inputs of three convolutions, float32
  uint64_t fixed_kept = 0;    // both, aligned: independent of the context
  uint64_t latent_per_token = 0;
  int64_t page_tokens = 0;
  int64_t context = 0;
  uint64_t latent_kept = 0;  // whole pages for the context
  uint64_t total = 0;        // fixed + latent
};

struct Inspection {
  ModelConfig config;
  enum class Source {
    kHeaders,  // every shard is there
    kIndex,    // names from the index, sizes from the config
    kConfig,   // neither
  } source = Source::kConfig;
  int64_t shards = 0;
  int64_t shards_absent = 0;
  uint64_t declared_bytes = 0;  // the index's total_size; 0 where it says nothing

  int64_t tensors = 0;  // in the files: text, vision and unknown
  uint64_t bytes = 0;   // of those

  TensorTotals text;
  std::vector<ComponentTotals> components;  // in the order of Component; only those the model has
  std::vector<LayerSummary> layers;
  TensorTotals expert;  // one routed expert

  TensorTotals vision;  // recognised, not used
  NameList missing;     // the model needs them, the files have not
  NameList unknown;     // the files have them, nothing uses them

  StateCosts state;
  // Of one decoded token at the context: the weights, the fixed state, the latent of every position.
  uint64_t read_per_token = 0;
};

// context: from 1 to the config's max_position_embeddings; 0 for the smaller of that and 32768.
Result<Inspection> Inspect(const std::string& folder, int64_t context);

}  // namespace kestrel
