// config.json of both shapes: K3 nests the text model under `text_config`, Kimi Linear is flat (spec 02). Parsing is
// strict about what the model depends on: a value that is missing where it has no default, of the wrong type, absurd,
// or in contradiction with another is an error that names the key.
//
//   KESTREL_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig("models/k3"));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kestrel/base/result.h"

namespace kestrel {

struct KdaConfig {
  int64_t heads = 0;
  int64_t head_dim = 0;  // key and value dimension
  int64_t conv_width = 4;
  std::optional<double> gate_lower_bound;  // none: the unbounded softplus gate
  bool full_rank_gate = false;
};

struct ActivationConfig {
  bool situ = false;  // else SiLU
  double beta = 1;
  double linear_beta = 0;  // 0: the linear factor is not bounded
};

struct ModelConfig {
  bool nested = false;  // K3's shape: tensor names carry `language_model.`
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t vocab_size = 0;
  double rms_norm_eps = 1e-5;
  int64_t max_position_embeddings = 1048576;
  bool tie_word_embeddings = false;
  int64_t bos_token_id = 0, pad_token_id = 0;
  std::vector<int64_t> eos_token_ids;

  std::vector<bool> is_kda;  // [layers]; else Gated MLA
  KdaConfig kda;

  int64_t num_attention_heads = 0;
  int64_t q_lora_rank = 0;  // 0: the query is one full matrix
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  bool mla_output_gate = false;

  ActivationConfig activation;
  int64_t intermediate_size = 0;  // dense layers
  int64_t first_k_dense_replace = 0;
  int64_t moe_layer_freq = 1;
  int64_t num_experts = 0;  // 0: every layer is dense
  int64_t experts_per_token = 0;
  int64_t shared_experts = 0;
  int64_t moe_intermediate_size = 0;
  int64_t latent_size = 0;  // 0: experts read the full width
  bool latent_norm = false;
  bool router_sigmoid = true;  // else softmax
  bool renormalize = true;
  double routed_scaling_factor = 1;
  int64_t expert_groups = 1, topk_group = 1;

  int64_t attn_res_block_size = 0;  // 0: a plain residual stack
  bool experts_mxfp4 = false;       // declared by quantization_config

  bool is_moe(int64_t layer) const {
    return num_experts > 0 && layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
  }
  bool opens_block(int64_t layer) const { return attn_res_block_size > 0 && layer % attn_res_block_size == 0; }
  // Blocks opened over the whole depth.
  int pushes() const {
    return attn_res_block_size > 0
               ? static_cast<int>((num_hidden_layers + attn_res_block_size - 1) / attn_res_block_size)
               : 0;
  }

  friend bool operator==(const ModelConfig&, const ModelConfig&);
};

// Errors begin with `where`, e.g. the file's path.
Result<ModelConfig> ParseModelConfig(std::string_view json, std::string_view where);
Result<ModelConfig> ReadModelConfig(const std::string& folder);
// In the shape that `nested` says; parses back to the same config.
std::string ToJson(const ModelConfig& config);

}  // namespace kestrel
