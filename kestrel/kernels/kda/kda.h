// Kimi Delta Attention, one kernel for decoding, prefill and every chunking in between, with the same bits. Per head:
//
//   S = diag(alpha_t) S;  S = S + beta_t k_t (v_t - S^T k_t)^T;  o_t = S^T q_t / sqrt(dim)         S [key, value]
//
// q and k are L2-normalised here, beta = sigmoid(logit), alpha = exp(g), g = lower_bound * sigmoid(a (z + dt_bias)), or
// g = -a softplus(z + dt_bias) where the gate is not bounded. Kept between calls: S at the last multiple of 16 tokens,
// and the rows since, so that a decode step only reads S and writes it once in 16 tokens.
//
//   std::vector<std::byte> state(KdaStateBytes(shape));                  // zero bytes: nothing seen yet
//   KdaForward(context, shape, {{{state.data(), 0, rows}}}, inputs, out);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kestrel/tensor/context.h"

namespace kestrel {

struct KdaShape {
  int heads = 0;
  int head_dim = 0;  // keys and values alike; multiples of 16 have vector kernels
  bool bounded = true;
  float lower_bound = -5;  // bounded only
};

// Rows [first_row, first_row + rows) of the call continue the sequence whose state this is. No state twice in a call.
struct KdaSegment {
  std::byte* state = nullptr;  // KdaStateBytes, 64-byte aligned for speed
  int64_t first_row = 0;
  int64_t rows = 0;
};

// All after the convolution and SiLU, before any normalisation.
struct KdaInputs {
  const float* q = nullptr;        // [rows, heads * head_dim]
  const float* k = nullptr;        // [rows, heads * head_dim]
  const float* v = nullptr;        // [rows, heads * head_dim]
  const float* z = nullptr;        // [rows, heads * head_dim], without dt_bias
  const float* beta = nullptr;     // [rows, heads], logits
  const float* dt_bias = nullptr;  // [heads * head_dim]
  const float* a = nullptr;        // [heads], exp(A_log)
};

// Bytes of one sequence's state in one layer. Plain memory: copy it to fork a sequence, zero it to start one.
size_t KdaStateBytes(const KdaShape& shape);

// Every segment's rows; states move on, out is [rows, heads * head_dim]. With MatMulMode::kBf16, AVX-512
// and head_dim a multiple of 16 the two products with S round their inputs to int16: a level is 1/8191 of the largest
// magnitude in a column of S or in 32 keys of a row. Everything else is float32 in both modes.
void KdaForward(Context& context, const KdaShape& shape, std::span<const KdaSegment> segments, const KdaInputs& inputs,
                float* out);

// S after the last token seen, s [heads, key, value].
void KdaMaterialize(const KdaShape& shape, const std::byte* state, float* s);

}  // namespace kestrel
