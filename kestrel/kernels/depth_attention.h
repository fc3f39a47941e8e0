// Block Attention Residuals: the input of a sub-layer is a softmax mixture over depth, of the finished blocks' sums and
// the running sum of this one.
//   score(v) = sum_d v_d / sqrt(mean(v^2) + eps) * direction_d      direction = norm_w * proj, one vector a sub-layer
//   out      = sum_v softmax(score)_v * v                           the raw v, not the normed one
// Only out is written: the running sum goes on unmixed.
//
// The two-phase form gives the same to a few ulp and reads the finished blocks once for all sub-layers of a block:
//   DepthAttentionFinished(ctx, sources, directions, eps, rows, D, state);       // once a block
//   DepthAttentionMerge(ctx, state, 3, partial, directions[3], eps, rows, D, h); // each sub-layer
#pragma once

#include <cstdint>
#include <span>

#include "kestrel/tensor/context.h"

namespace kestrel {

// sources.size() + (partial != null) is 1 to 64. out may be partial.
void DepthAttention(Context& ctx, std::span<const float* const> sources /*each [rows, D]*/,
                    const float* partial /*[rows, D] or null*/, const float* direction /*[D]*/, float eps, int64_t rows,
                    int64_t D, float* out /*[rows, D]*/);

// out = rms(mixture; norm_w, norm_eps).
void DepthAttentionNorm(Context& ctx, std::span<const float* const> sources /*each [rows, D]*/,
                        const float* partial /*[rows, D] or null*/, const float* direction /*[D]*/, float eps,
                        int64_t rows, int64_t D, const float* norm_w /*[D]*/, float norm_eps, float* out /*[rows, D]*/);

// Phase 1, for each direction: the largest score, the sum of exp(score - largest) and the mixture with those weights.
struct DepthState {
  float* mix;      // [directions, rows, D]
  float* largest;  // [directions, rows]
  float* sum;      // [directions, rows]
};
void DepthAttentionFinished(Context& ctx, std::span<const float* const> sources /*each [rows, D], one or more*/,
                            std::span<const float* const> directions /*each [D]*/, float eps, int64_t rows, int64_t D,
                            const DepthState& state);
// Phase 2 of direction number `index`: the running sum joins by an online-softmax step. partial null: none yet.
void DepthAttentionMerge(Context& ctx, const DepthState& state, int64_t index,
                         const float* partial /*[rows, D] or null*/, const float* direction /*[D]*/, float eps,
                         int64_t rows, int64_t D, float* out /*[rows, D]*/);

}  // namespace kestrel
