// Kernel shapes that follow from a config.
#pragma once

#include <cmath>

#include "kestrel/formats/model_config.h"
#include "kestrel/kernels/kda/kda.h"
#include "kestrel/kernels/mla_attention.h"
#include "kestrel/kernels/router.h"
#include "kestrel/tensor/context.h"

namespace kestrel {

inline KdaShape KdaShapeOf(const ModelConfig& c) {
  return {static_cast<int>(c.kda.heads), static_cast<int>(c.kda.head_dim), c.kda.gate_lower_bound.has_value(),
          static_cast<float>(c.kda.gate_lower_bound.value_or(0))};
}

// Heads narrower than this keep float32 products and latents in bf16 mode too: they cost little, and small models feel
// every rounding (see kExactCols in kernels/matmul/matmul.h).
inline constexpr int64_t kWideHead = 128;

inline MatMulMode KdaMode(const ModelConfig& c, MatMulMode mode) {
  return c.kda.head_dim < kWideHead ? MatMulMode::kF32 : mode;
}
inline MatMulMode MlaMode(const ModelConfig& c, MatMulMode mode) {
  return c.qk_nope_head_dim < kWideHead ? MatMulMode::kF32 : mode;
}

inline MlaShape MlaShapeOf(const ModelConfig& c) {
  const auto nope = static_cast<int>(c.qk_nope_head_dim), rope = static_cast<int>(c.qk_rope_head_dim);
  return {static_cast<int>(c.num_attention_heads),
          nope,
          rope,
          static_cast<int>(c.v_head_dim),
          static_cast<int>(c.kv_lora_rank),
          1 / std::sqrt(static_cast<float>(nope + rope))};
}

inline RouterShape RouterShapeOf(const ModelConfig& c) {
  return {static_cast<int>(c.num_experts),
          static_cast<int>(c.experts_per_token),
          static_cast<int>(c.expert_groups),
          static_cast<int>(c.topk_group),
          c.router_sigmoid,
          c.renormalize,
          static_cast<float>(c.routed_scaling_factor)};
}

}  // namespace kestrel
