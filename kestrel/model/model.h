// The K3 text model: Forward over rows of several sequences at once.
//
//   KESTREL_ASSIGN_OR_RETURN(auto model, Model::Load(ctx, "k3-tiny", {}));
//   SequenceState s = model->NewState();
//   KESTREL_RETURN_IF_ERROR(s.Reserve(ids.size()));
//   const Segment segment{&s, 0, rows, Phase::kPrefill};
//   KESTREL_RETURN_IF_ERROR(model->Forward(ctx, {ids, {&segment, 1}, wanted}, logits));
//
// A row's logits depend on its sequence's tokens alone: the same bits in any chunking, batch and thread count.
#pragma once

#include <memory>
#include <string>

#include "kestrel/model/batch.h"
#include "kestrel/model/weights.h"

namespace kestrel {

class Model {
 public:
  // folder holds config.json and safetensors. Errors name the file, key or tensor.
  static Result<std::unique_ptr<Model>> Load(Context& ctx, const std::string& folder,
                                             const ModelWeights::ProgressFn& progress);

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return *weights_; }
  SequenceState NewState() const { return SequenceState(layout_, pool_); }
  Result<SequenceState> LoadState(const std::string& path) const { return SequenceState::Load(path, layout_, pool_); }

  // logits [logit_rows, V]. Advances the segments' states. kOutOfRange names an id outside the vocabulary or a context
  // past its end, and nothing is changed. Allocates nothing once the arena has seen a pass of this size and the states
  // have room.
  Status Forward(Context& ctx, const Batch& batch, float* logits, Probe* probe = nullptr) const;

 private:
  Model() = default;
  Status CheckBatch(const Batch& batch) const;

  ModelConfig config_;
  std::shared_ptr<const ModelWeights> weights_;
  std::shared_ptr<const StateLayout> layout_;
  std::shared_ptr<PagePool> pool_;
};

}  // namespace kestrel
