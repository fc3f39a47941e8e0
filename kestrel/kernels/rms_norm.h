// Root-mean-square norms of rows, float32:
//   RmsNorm       out = w * x / sqrt(mean(x^2) + eps)
//   GatedRmsNorm  per head, the mean over the head's d channels alone, times sigmoid(gate)
//   L2Norm        out = x / sqrt(sum(x^2) + eps)
// out may be x. A row's bits depend on nothing but the row and the instruction set.
#pragma once

#include <cstdint>

#include "kestrel/tensor/context.h"

namespace kestrel {

void RmsNorm(Context& ctx, const float* x /*[rows, n]*/, const float* w /*[n]*/, float eps, int64_t rows, int64_t n,
             float* out /*[rows, n]*/);

// w is shared by the heads.
void GatedRmsNorm(Context& ctx, const float* o /*[rows, heads * d]*/, const float* w /*[d]*/, float eps,
                  const float* gate /*[rows, heads * d] logits*/, int64_t rows, int64_t heads, int64_t d,
                  float* out /*[rows, heads * d]*/);

void L2Norm(Context& ctx, const float* x /*[rows, n]*/, float eps, int64_t rows, int64_t n, float* out /*[rows, n]*/);

}  // namespace kestrel
