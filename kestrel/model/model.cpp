#include "kestrel/model/model.h"

#include <algorithm>

#include "kestrel/kernels/embedding.h"
#include "kestrel/kernels/matmul/matmul.h"
#include "kestrel/model/block.h"

namespace kestrel {

Result<std::unique_ptr<Model>> Model::Load(Context& ctx, const std::string& folder,
                                           const ModelWeights::ProgressFn& progress) {
  std::unique_ptr<Model> model(new Model);
  KESTREL_ASSIGN_OR_RETURN(model->config_, ReadModelConfig(folder));
  KESTREL_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  KESTREL_ASSIGN_OR_RETURN(model->weights_, ModelWeights::Load(ctx, checkpoint, model->config_, progress));
  model->layout_ = std::make_shared<StateLayout>(model->config_, ctx.matmul, model->weights_->fingerprint());
  model->pool_ = std::make_shared<PagePool>(model->layout_->group_bytes());
  return model;
}

namespace {

void Embed(const Pass& pass, const ModelWeights& w, float* out) {
  const int32_t* ids = pass.batch.ids.data();
  const int64_t hidden = pass.config.hidden_size;
  if (w.embedding_is_bf16) {
    EmbeddingGather(pass.ctx, static_cast<const bf16*>(w.embedding), ids, pass.rows(), hidden, out);
  } else {
    EmbeddingGather(pass.ctx, static_cast<const float*>(w.embedding), ids, pass.rows(), hidden, out);
  }
}

}  // namespace

Status Model::CheckBatch(const Batch& batch) const {
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    if (batch.ids[i] < 0 || batch.ids[i] >= config_.vocab_size) {
      return Err(ErrorCode::kOutOfRange, "[model.forward] token {}: id, got {}, want 0 to {}", i, batch.ids[i],
                 config_.vocab_size - 1);
    }
  }
  for (const Segment& s : batch.segments) {
    KESTREL_RETURN_IF_ERROR(s.state->Reserve(s.state->position() + s.rows));
  }
  return {};
}

Status Model::Forward(Context& ctx, const Batch& batch, float* logits, Probe* probe) const {
  KESTREL_RETURN_IF_ERROR(CheckBatch(batch));
  const ArenaScope scope(ctx.arena);
  Pass pass{ctx, config_, batch, 0, probe};
  const int64_t hidden = config_.hidden_size;

  BlockBank bank(pass, config_.pushes());
  Embed(pass, *weights_, bank.embedding());
  for (pass.layer = 0; pass.layer < config_.num_hidden_layers; ++pass.layer)
    Block(pass, weights_->layer(pass.layer), bank);
  for (const Segment& s : batch.segments) s.state->Advance(s.rows);

  const auto wanted = static_cast<int64_t>(batch.logit_rows.size());
  if (wanted == 0) return {};
  float* last = ctx.arena.Take<float>(wanted * hidden);
  for (int64_t i = 0, run = 1; i < wanted; i += run, run = 1) {  // runs of consecutive rows
    const int32_t* rows = batch.logit_rows.data() + i;
    while (i + run < wanted && rows[run] == rows[0] + run) ++run;
    bank.ReadRows(pass, weights_->output_residual, weights_->final_norm, rows[0], run, last + i * hidden);
  }
  MatMul(ctx, PrepareActivations(ctx, last, wanted, hidden, hidden), weights_->lm_head, logits, config_.vocab_size);
  return {};
}

}  // namespace kestrel
