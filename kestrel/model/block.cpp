#include "kestrel/model/block.h"

#include "kestrel/model/dense_mlp/dense_mlp.h"
#include "kestrel/model/kda/kda_layer.h"
#include "kestrel/model/latent_moe/latent_moe.h"
#include "kestrel/model/mla/mla_layer.h"

namespace kestrel {

void Block(const Pass& pass, const LayerWeights& w, BlockBank& bank) {
  const ArenaScope scope(pass.ctx.arena);
  const ModelConfig& c = pass.config;
  float* h = pass.Rows(c.hidden_size);    // what a sub-layer reads
  float* out = pass.Rows(c.hidden_size);  // what it answers

  // Mixer. Its input is mixed before the block is opened: a new block's first layer still reads the sum it closes.
  bank.Read(pass, w.mixer_residual, w.input_norm, h);
  if (c.opens_block(pass.layer)) bank.Push();
  if (c.is_kda[static_cast<size_t>(pass.layer)]) {
    KdaLayer(pass, w.kda, h, out);
  } else {
    MlaLayer(pass, w.mla, h, out);
  }
  bank.Add(pass, out);
  if (pass.probe != nullptr) pass.probe->OnRows(pass.layer, "mixer", out, pass.rows(), c.hidden_size);

  // Feed-forward.
  bank.Read(pass, w.ffn_residual, w.post_attention_norm, h);
  if (c.is_moe(pass.layer)) {
    LatentMoe(pass, w.moe, h, out);
  } else {
    DenseMlp(pass, w.mlp, h, out);
  }
  bank.Add(pass, out);
  if (pass.probe != nullptr) {
    pass.probe->OnRows(pass.layer, "ffn", out, pass.rows(), c.hidden_size);
    pass.probe->OnRows(pass.layer, "partial", bank.partial(), pass.rows(), c.hidden_size);
  }
}

}  // namespace kestrel
