// Which experts a token goes to, and with what weight.
//   score   = sigmoid(logit), or softmax over the experts, in float32
//   chosen  = the top_k largest of score + bias; ties: the lower index. With groups > topk_groups only the topk_groups
//             groups with the largest sum of their best two biased scores take part.
//   weight  = score of a chosen expert, without the bias; / (sum + 1e-20) if renormalized; * scale
// NaN logits rank last, so that the ids stay valid and distinct; the weights of a NaN that was chosen are NaN.
#pragma once

#include <cstdint>

#include "kestrel/tensor/context.h"

namespace kestrel {

struct RouterShape {
  int experts = 0;
  int top_k = 0;  // at most 64
  int groups = 1;
  int topk_groups = 1;
  bool sigmoid = true;  // else softmax
  bool renormalize = true;
  float scale = 1;
};

void Route(Context& ctx, const RouterShape& shape, const float* logits /*[rows, E]*/, const float* bias /*[E]*/,
           int64_t rows, int32_t* ids /*[rows, k], best first*/, float* weights /*[rows, k]*/,
           float* cutoff /*[rows] or null: the (k+1)-th biased score, -inf where there is none*/,
           float* scores /*[rows, E] or null*/);

}  // namespace kestrel
