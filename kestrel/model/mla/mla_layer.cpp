#include "kestrel/model/mla/mla_layer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kestrel/base/float_types.h"
#include "kestrel/kernels/elementwise.h"
#include "kestrel/kernels/matmul/matmul.h"
#include "kestrel/kernels/mla_attention.h"
#include "kestrel/kernels/rms_norm.h"
#include "kestrel/model/shapes.h"

namespace kestrel {
namespace {

constexpr float kInnerEps = 1e-6f;  // both inner norms, whatever rms_norm_eps says

// latent [rows, rank + rope] -> pages: c = rms(c), r as it is.
void StoreLatents(const Pass& pass, const MlaWeights& w, float* latent) {
  const int64_t rank = pass.config.kv_lora_rank, width = rank + pass.config.qk_rope_head_dim;
  for (const Segment& s : pass.batch.segments) {
    for (int64_t i = 0; i < s.rows; ++i) {
      float* row = latent + (s.first_row + i) * width;
      RmsNorm(pass.ctx, row, w.kv_a_norm, kInnerEps, 1, rank, row);
      void* out = s.state->latent_row(pass.layer, s.state->position() + i);
      if (s.state->layout().bf16_latent) {
        auto* half = static_cast<bf16*>(out);
        for (int64_t d = 0; d < width; ++d) half[d] = ToBf16(row[d]);
      } else {
        std::memcpy(out, row, static_cast<size_t>(width) * sizeof(float));
      }
    }
  }
}

// The segments of one phase, as runs of rows [first, first + rows) of their own compact arrays.
struct PhaseRows {
  std::span<MlaSegment> segments;
  int32_t* rows = nullptr;  // batch row of each compact row
  int64_t count = 0;
};

PhaseRows Select(const Pass& pass, Phase phase) {
  const auto n = static_cast<int64_t>(pass.batch.segments.size());
  auto* segments = pass.ctx.arena.Take<MlaSegment>(n);
  PhaseRows out;
  out.rows = pass.ctx.arena.Take<int32_t>(pass.rows());
  size_t kept = 0;
  for (const Segment& s : pass.batch.segments) {
    if (s.phase != phase || s.rows == 0) continue;
    segments[kept++] = {
        {s.state->pages(pass.layer), s.state->layout().bf16_latent}, out.count, s.rows, s.state->position()};
    for (int64_t i = 0; i < s.rows; ++i) out.rows[out.count++] = static_cast<int32_t>(s.first_row + i);
  }
  out.segments = {segments, kept};
  return out;
}

float* Gather(const Pass& pass, const float* x, int64_t width, const PhaseRows& phase) {
  float* out = pass.ctx.arena.Take<float>(phase.count * width);
  for (int64_t i = 0; i < phase.count; ++i) {
    std::memcpy(out + i * width, x + phase.rows[i] * width, static_cast<size_t>(width) * sizeof(float));
  }
  return out;
}

void Scatter(const float* x, int64_t width, const PhaseRows& phase, float* out) {
  for (int64_t i = 0; i < phase.count; ++i) {
    std::memcpy(out + phase.rows[i] * width, x + i * width, static_cast<size_t>(width) * sizeof(float));
  }
}

// One matmul per head, y[., h] = x[., h] W_h^T, in one fork-join: x [n, H * x_step], y [n, H * y_step].
void PerHead(const Pass& pass, const float* x, int64_t x_step, const std::vector<PackedMatrix>& w, int64_t n, float* y,
             int64_t y_step) {
  const auto heads = static_cast<int64_t>(w.size());
  auto* in = pass.ctx.arena.Take<Activations>(heads);
  auto* jobs = pass.ctx.arena.Take<MatMulJob>(heads);
  for (int64_t h = 0; h < heads; ++h) {
    const PackedMatrix& m = w[static_cast<size_t>(h)];
    in[h] = PrepareActivations(pass.ctx, x + h * x_step, n, m.cols, heads * x_step);
    jobs[h] = MatMulJob{&in[h], &m, y + h * y_step, heads * y_step, n};
  }
  MatMul(pass.ctx, {jobs, static_cast<size_t>(heads)});
}

// q [n, H, nope + rope] -> [n, H, rank + rope] with the key matrix absorbed; attention on latents; then out of them.
void Absorbed(const Pass& pass, const MlaWeights& w, const MlaShape& s, const float* q, const PhaseRows& phase,
              float* out) {
  const int64_t n = phase.count, qk = s.nope + s.rope, wide = s.rank + s.rope;
  float* q_latent = pass.ctx.arena.Take<float>(n * s.heads * wide);
  PerHead(pass, q, qk, w.key_absorbed, n, q_latent, wide);
  for (int64_t i = 0; i < n * s.heads; ++i) {
    std::memcpy(q_latent + i * wide + s.rank, q + i * qk + s.nope, static_cast<size_t>(s.rope) * sizeof(float));
  }
  float* mixed = pass.ctx.arena.Take<float>(n * s.heads * s.rank);
  Context attention = pass.ctx;
  attention.matmul = MlaMode(pass.config, pass.ctx.matmul);
  MlaDecode(attention, s, phase.segments, q_latent, mixed);
  PerHead(pass, mixed, s.rank, w.value, n, out, s.v_dim);
}

// o [rows, H * v_dim] for all rows: each phase in its own form.
void Attend(const Pass& pass, const MlaWeights& w, const float* q, float* o) {
  const MlaShape s = MlaShapeOf(pass.config);
  const int64_t qk = int64_t{s.heads} * (s.nope + s.rope), v = int64_t{s.heads} * s.v_dim;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const ArenaScope scope(pass.ctx.arena);
    const PhaseRows rows = Select(pass, phase);
    if (rows.count == 0) continue;
    const bool all = rows.count == pass.rows();
    const float* q_rows = all ? q : Gather(pass, q, qk, rows);
    float* out = all ? o : pass.ctx.arena.Take<float>(rows.count * v);
    if (phase == Phase::kPrefill) {
      Context attention = pass.ctx;
      attention.matmul = MlaMode(pass.config, pass.ctx.matmul);
      MlaPrefill(attention, s, rows.segments, q_rows, {w.kv_b, w.kv_b_is_bf16}, out);
    } else {
      Absorbed(pass, w, s, q_rows, rows, out);
    }
    if (!all) Scatter(out, v, rows, o);
  }
}

}  // namespace

void MlaLayer(const Pass& pass, const MlaWeights& w, const float* x, float* y) {
  Context& ctx = pass.ctx;
  const ArenaScope scope(ctx.arena);
  const int64_t rows = pass.rows(), hidden = pass.config.hidden_size;
  const bool low_rank = w.q_a.rows > 0, gated = w.g.rows > 0;

  const Activations in = PrepareActivations(ctx, x, rows, hidden, hidden);
  const PackedMatrix& first_q = low_rank ? w.q_a : w.q;
  float *q = pass.Rows(w.q.rows), *gate = pass.Rows(w.g.rows), *latent = pass.Rows(w.kv_a.rows);
  float* q_a = low_rank ? pass.Rows(w.q_a.rows) : q;
  const std::array<MatMulJob, 3> from_input = {{{&in, &first_q, q_a, first_q.rows, rows},
                                                {&in, &w.kv_a, latent, w.kv_a.rows, rows},
                                                {&in, &w.g, gate, w.g.rows, rows}}};
  MatMul(ctx, std::span(from_input).first(gated ? 3 : 2));
  if (low_rank) {
    RmsNorm(ctx, q_a, w.q_a_norm, kInnerEps, rows, w.q_a.rows, q_a);
    MatMul(ctx, PrepareActivations(ctx, q_a, rows, w.q_a.rows, w.q_a.rows), w.q, q, w.q.rows);
  }
  StoreLatents(pass, w, latent);

  const int64_t width = w.o.cols;
  float* o = pass.Rows(width);
  Attend(pass, w, q, o);
  if (gated) SigmoidMul(ctx, o, gate, rows * width, o);
  MatMul(ctx, PrepareActivations(ctx, o, rows, width, width), w.o, y, hidden);
}

}  // namespace kestrel
