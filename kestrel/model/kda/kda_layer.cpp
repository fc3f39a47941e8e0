#include "kestrel/model/kda/kda_layer.h"

#include <array>

#include "kestrel/kernels/kda/kda.h"
#include "kestrel/kernels/kda/short_conv.h"
#include "kestrel/kernels/matmul/matmul.h"
#include "kestrel/kernels/rms_norm.h"
#include "kestrel/model/shapes.h"

namespace kestrel {
namespace {

// out [rows, C] = silu(conv(x)), for one of q, k, v; the tails live in the states.
float* Convolve(const Pass& pass, int which, const float* x, const float* weight, int64_t channels) {
  float* out = pass.Rows(channels);
  const size_t n = pass.batch.segments.size();
  auto* segments = pass.ctx.arena.Take<ConvSegment>(static_cast<int64_t>(n));
  for (size_t i = 0; i < n; ++i) {
    const Segment& s = pass.batch.segments[i];
    segments[i] = {s.state->conv_tail(pass.layer, which), s.first_row, s.rows};
  }
  ShortConv(pass.ctx, {segments, n}, x, channels, weight, static_cast<int>(pass.config.kda.conv_width), out);
  return out;
}

std::span<const KdaSegment> Segments(const Pass& pass) {
  const size_t n = pass.batch.segments.size();
  auto* segments = pass.ctx.arena.Take<KdaSegment>(static_cast<int64_t>(n));
  for (size_t i = 0; i < n; ++i) {
    const Segment& s = pass.batch.segments[i];
    segments[i] = {s.state->kda(pass.layer), s.first_row, s.rows};
  }
  return {segments, n};
}

}  // namespace

void KdaLayer(const Pass& pass, const KdaWeights& w, const float* x, float* y) {
  Context& ctx = pass.ctx;
  const ArenaScope scope(ctx.arena);
  const auto& c = pass.config.kda;
  const int64_t rows = pass.rows(), width = c.heads * c.head_dim, rank = w.f_a.rows;

  const Activations in = PrepareActivations(ctx, x, rows, pass.config.hidden_size, pass.config.hidden_size);
  float *q = pass.Rows(width), *k = pass.Rows(width), *v = pass.Rows(width), *z = pass.Rows(width);
  float *beta = pass.Rows(c.heads), *f = pass.Rows(rank), *gate = pass.Rows(width);
  float* g = c.full_rank_gate ? gate : pass.Rows(w.g.rows);
  const std::array<MatMulJob, 6> from_input = {{{&in, &w.q, q, width, rows},
                                                {&in, &w.k, k, width, rows},
                                                {&in, &w.v, v, width, rows},
                                                {&in, &w.g, g, w.g.rows, rows},
                                                {&in, &w.f_a, f, rank, rows},
                                                {&in, &w.b, beta, c.heads, rows}}};
  MatMul(ctx, from_input);

  const Activations f_in = PrepareActivations(ctx, f, rows, rank, rank);
  std::array<MatMulJob, 2> second = {{{&f_in, &w.f_b, z, width, rows}}};
  Activations g_in;
  if (!c.full_rank_gate) {
    g_in = PrepareActivations(ctx, g, rows, w.g.rows, w.g.rows);
    second[1] = {&g_in, &w.g_b, gate, width, rows};
  }
  MatMul(ctx, std::span(second).first(c.full_rank_gate ? 1 : 2));

  const KdaInputs inputs = {Convolve(pass, 0, q, w.conv_q, width),
                            Convolve(pass, 1, k, w.conv_k, width),
                            Convolve(pass, 2, v, w.conv_v, width),
                            z,
                            beta,
                            w.dt_bias,
                            w.a};
  float* o = pass.Rows(width);
  Context scan = ctx;
  scan.matmul = KdaMode(pass.config, ctx.matmul);
  KdaForward(scan, KdaShapeOf(pass.config), Segments(pass), inputs, o);
  GatedRmsNorm(ctx, o, w.o_norm, pass.eps(), gate, rows, c.heads, c.head_dim, o);
  MatMul(ctx, PrepareActivations(ctx, o, rows, width, width), w.o, y, pass.config.hidden_size);
}

}  // namespace kestrel
