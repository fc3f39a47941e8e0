// The model's weights by role. Matrices are packed once at load (kernels/matmul/packed_matrix.h); vectors are float32.
// A layer sees only these handles: whether the bytes behind them are resident or were just streamed in is the
// business of whoever gave it the handle.
//
//   KESTREL_ASSIGN_OR_RETURN(const auto weights, ModelWeights::Load(ctx, checkpoint, config, {}));
//   const LayerWeights& layer = weights->layer(3);
//
// Letters: D hidden size, H heads, d head dimension, R rank, E experts, I expert width, Z latent width, V vocabulary.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kestrel/base/aligned.h"
#include "kestrel/base/result.h"
#include "kestrel/formats/checkpoint.h"
#include "kestrel/formats/model_config.h"
#include "kestrel/kernels/matmul/packed_matrix.h"
#include "kestrel/tensor/context.h"

namespace kestrel {

// One pseudo-query of Block Attention Residuals: score(v) = <rms(v), norm_w * proj>.
struct ResidualWeights {
  const float* direction = nullptr;  // [D] = norm_w * proj; null in a plain residual stack
};

struct KdaWeights {
  PackedMatrix q, k, v;                                                 // [H*d, D]
  const float *conv_q = nullptr, *conv_k = nullptr, *conv_v = nullptr;  // [width, H*d], transposed from the file
  PackedMatrix f_a, f_b;                                                // [d, D], [H*d, d]: decay gate
  const float* dt_bias = nullptr;                                       // [H*d]
  const float* a = nullptr;                                             // [H] = exp(A_log)
  PackedMatrix b;                                                       // [H, D]: beta
  PackedMatrix g, g_b;            // full rank: g [H*d, D]; else g [d, D], g_b [H*d, d]
  const float* o_norm = nullptr;  // [d]
  PackedMatrix o;                 // [D, H*d]
};

struct MlaWeights {
  PackedMatrix q_a;                  // [R_q, D]; empty where the query has no low rank
  const float* q_a_norm = nullptr;   // [R_q]
  PackedMatrix q;                    // [H*(nope+rope), R_q or D]
  PackedMatrix kv_a;                 // [R+rope, D]
  const float* kv_a_norm = nullptr;  // [R]
  const void* kv_b = nullptr;        // [H*(nope+v), R] as in the file, for prefill
  bool kv_b_is_bf16 = true;
  std::vector<PackedMatrix> key_absorbed;  // per head [R, nope]: carries the query into the latent space
  std::vector<PackedMatrix> value;         // per head [v, R]: carries the mixed latent out of it
  PackedMatrix g;                          // [H*v, D]; empty without output gate
  PackedMatrix o;                          // [D, H*v]
};

struct DenseMlpWeights {
  PackedMatrix gate, up;  // [I, D]
  PackedMatrix down;      // [D, I]
};

struct ExpertWeights {
  PackedMatrix w1, w3;  // gate and up, [I, Z]
  PackedMatrix w2;      // [Z, I]
};

struct LatentMoeWeights {
  PackedMatrix router;                  // [E, D], float32: scores decide near ties
  const float* router_bias = nullptr;   // [E]
  PackedMatrix latent_down, latent_up;  // [Z, D], [D, Z]; empty without latent
  const float* latent_norm = nullptr;   // [Z] or null
  std::vector<ExpertWeights> experts;
  DenseMlpWeights shared;  // width shared_experts * I; empty without shared experts
};

struct LayerWeights {
  ResidualWeights mixer_residual, ffn_residual;
  const float* input_norm = nullptr;           // [D]
  const float* post_attention_norm = nullptr;  // [D]
  KdaWeights kda;                              // where config.is_kda[layer]
  MlaWeights mla;                              // elsewhere
  DenseMlpWeights mlp;                         // where !config.is_moe(layer)
  LatentMoeWeights moe;                        // elsewhere
};

class ModelWeights {
 public:
  using ProgressFn = std::function<void(double done, double total)>;  // bytes

  // Binds every tensor by name, checks shapes and types, packs. Errors: kMismatch, kNotFound, kCorrupt name the tensor.
  static Result<std::shared_ptr<const ModelWeights>> Load(Context& ctx, const Checkpoint& checkpoint,
                                                          const ModelConfig& config, const ProgressFn& progress);

  const LayerWeights& layer(int index) const { return layers_[static_cast<size_t>(index)]; }
  int layers() const { return static_cast<int>(layers_.size()); }

  const void* embedding = nullptr;  // [V, D], row-major
  bool embedding_is_bf16 = true;
  ResidualWeights output_residual;
  const float* final_norm = nullptr;  // [D]
  PackedMatrix lm_head;               // [V, D]

  // Of the config and a sample of every tensor's bytes: a state of another model is refused by it.
  uint64_t fingerprint() const { return fingerprint_; }
  size_t resident_bytes() const { return memory_.size(); }

 private:
  friend class WeightBinder;
  std::vector<LayerWeights> layers_;
  AlignedBuffer memory_;  // everything the handles point into
  uint64_t fingerprint_ = 0;
};

}  // namespace kestrel
