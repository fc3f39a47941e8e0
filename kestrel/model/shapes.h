// Kernel shapes that follow from a config.
#pragma once

#include <cmath>

#include "kestrel/formats/model_config.h"
#include "kestrel/kernels/kda/kda.h"
#include "kestrel/kernels/mla_attention.h"
#include "kestrel/kernels/router.h"

namespace kestrel {

inline KdaShape KdaShapeOf(const ModelConfig& c) {
  return {static_cast<int>(c.kda.heads), static_cast<int>(c.kda.head_dim), c.kda.gate_lower_bound.has_value(),
          static_cast<float>(c.kda.gate_lower_bound.value_or(0))};
}

inline MlaShape MlaShapeOf(const ModelConfig& c) {
  const auto nope = static_cast<int>(c.qk_nope_head_dim), rope = static_cast<int>(c.qk_rope_head_dim);
  return {static_cast<int>(c.num_attention_heads), nope, rope, static_cast<int>(c.v_head_dim),
          static_cast<int>(c.kv_lora_rank), 1 / std::sqrt(static_cast<float>(nope + rope))};
}

inline RouterShape RouterShapeOf(const ModelConfig& c) {
  return {static_cast<int>(c.num_experts), static_cast<int>(c.experts_per_token), static_cast<int>(c.expert_groups),
          static_cast<int>(c.topk_group), c.router_sigmoid, c.renormalize, static_cast<float>(c.routed_scaling_factor)};
}

}  // namespace kestrel
