#include "kestrel/model/dense_mlp/dense_mlp.h"

#include <array>

#include "kestrel/kernels/elementwise.h"
#include "kestrel/kernels/matmul/matmul.h"

namespace kestrel {

void Activate(const Pass& pass, const float* gate, const float* up, int64_t n, float* out) {
  const auto& a = pass.config.activation;
  if (a.situ) {
    Situ(pass.ctx, gate, up, static_cast<float>(a.beta), static_cast<float>(a.linear_beta), n, out);
  } else {
    SiluMul(pass.ctx, gate, up, n, out);
  }
}

void DenseMlp(const Pass& pass, const DenseMlpWeights& w, const float* x, float* y) {
  Context& ctx = pass.ctx;
  const ArenaScope scope(ctx.arena);
  const int64_t rows = pass.rows(), hidden = w.gate.cols, width = w.gate.rows;
  const Activations in = PrepareActivations(ctx, x, rows, hidden, hidden);
  float *gate = pass.Rows(width), *up = pass.Rows(width);
  const std::array<MatMulJob, 2> jobs = {{{&in, &w.gate, gate, width, rows}, {&in, &w.up, up, width, rows}}};
  MatMul(ctx, jobs);
  Activate(pass, gate, up, rows * width, gate);
  MatMul(ctx, PrepareActivations(ctx, gate, rows, width, width), w.down, y, hidden);
}

}  // namespace kestrel
