// Elementwise kernels and the few reductions that go with them, float32. exp, sigmoid and tanh are within 2 ulp and
// right in the limits (sigmoid(-200) = 0, Situ(-200, u) = -0); NaN in, NaN out. Outputs may be an input.
//   Situ       out = beta tanh(gate / beta) sigmoid(gate) * linear_beta tanh(up / linear_beta)
//   SiluMul    out = gate sigmoid(gate) * up
//   SigmoidMul out = o sigmoid(gate)
#pragma once

#include <cstdint>

#include "kestrel/tensor/context.h"

namespace kestrel {

void Situ(Context& ctx, const float* gate /*[n]*/, const float* up /*[n]*/, float beta,
          float linear_beta /* <= 0: up enters as it is */, int64_t n, float* out /*[n]*/);
void SiluMul(Context& ctx, const float* gate /*[n]*/, const float* up /*[n]*/, int64_t n, float* out /*[n]*/);
void Silu(Context& ctx, const float* x /*[n]*/, int64_t n, float* out /*[n]*/);
void Sigmoid(Context& ctx, const float* x /*[n]*/, int64_t n, float* out /*[n]*/);
void SigmoidMul(Context& ctx, const float* o /*[n]*/, const float* gate /*[n] logits*/, int64_t n, float* out /*[n]*/);

// In place; minus infinity is a mask.
void Softmax(Isa isa, float* x /*[n]*/, int64_t n);

void AddTo(Context& ctx, const float* x /*[n]*/, int64_t n, float* y /*[n], y += x*/);

// out[r] = sum over slots s = 0 .. k-1, in that order, of weights[r, s] * y[r * k + s].
void CombineExperts(Context& ctx, const float* y /*[rows * k, n]*/, const float* weights /*[rows, k]*/, int64_t rows,
                    int64_t k, int64_t n, float* out /*[rows, n]*/);

}  // namespace kestrel
