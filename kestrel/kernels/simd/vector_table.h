// The vector bodies of the small kernels, one table for each instruction set. All work on one contiguous row, run on
// the calling thread and may read and write the same array. The kernels in the folder above add shapes and threads.
#pragma once

#include <cstdint>

#include "kestrel/base/cpu.h"

namespace kestrel {

struct VectorTable {
  // out = w * x / sqrt(mean(x^2) + eps); x, w, out: [n].
  void (*rms_norm)(const float* x, const float* w, float eps, int64_t n, float* out);
  // The same, times sigmoid(gate): [n].
  void (*gated_rms_norm)(const float* x, const float* w, float eps, const float* gate, int64_t n, float* out);
  // out = x / sqrt(sum(x^2) + eps).
  void (*l2_norm)(const float* x, float eps, int64_t n, float* out);
  // beta tanh(gate / beta) sigmoid(gate) * linear_beta tanh(up / linear_beta); linear_beta <= 0: times up.
  void (*situ)(const float* gate, const float* up, float beta, float linear_beta, int64_t n, float* out);
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  void (*silu)(const float* x, int64_t n, float* out);
  void (*sigmoid)(const float* x, int64_t n, float* out);
  void (*sigmoid_mul)(const float* x, const float* gate, int64_t n, float* out);
  void (*exp)(const float* x, int64_t n, float* out);
  void (*tanh)(const float* x, int64_t n, float* out);
  void (*softmax)(float* x, int64_t n);
  void (*add_to)(const float* x, int64_t n, float* y);
  // out[i] = sum over s < count, in that order, of weights[s] * sources[s][i].
  void (*weighted_sum)(const float* const* sources, const float* weights, int64_t count, int64_t n, float* out);
  // dot = sum(x * y), square = sum(x^2).
  void (*dot_and_square)(const float* x, const float* y, int64_t n, float* dot, float* square);
  // Largest value; false if any is NaN or infinite. n >= 1.
  bool (*max_finite)(const float* x, int64_t n, float* max);
};

const VectorTable& GetVectorTable(Isa isa);

}  // namespace kestrel
