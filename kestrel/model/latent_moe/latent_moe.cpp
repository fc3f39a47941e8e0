#include "kestrel/model/latent_moe/latent_moe.h"

#include <algorithm>
#include <array>

#include "kestrel/kernels/elementwise.h"
#include "kestrel/kernels/matmul/matmul.h"
#include "kestrel/kernels/rms_norm.h"
#include "kestrel/kernels/router.h"
#include "kestrel/model/dense_mlp/dense_mlp.h"
#include "kestrel/model/shapes.h"

namespace kestrel {
namespace {

// The chosen (row, slot) pairs sorted by expert: those of expert e are [begin[e], begin[e + 1]).
struct Dispatch {
  int32_t* begin;  // [E + 1]
  int32_t* rows;   // [rows * k] row of the input
  int32_t* slots;  // [rows * k] row * k + slot: where the result goes
};

Dispatch SortByExpert(const Pass& pass, const int32_t* ids) {
  const int64_t experts = pass.config.num_experts, k = pass.config.experts_per_token, pairs = pass.rows() * k;
  Arena& arena = pass.ctx.arena;
  Dispatch d = {arena.Take<int32_t>(experts + 1), arena.Take<int32_t>(pairs), arena.Take<int32_t>(pairs)};
  std::fill_n(d.begin, experts + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) ++d.begin[ids[i] + 1];
  for (int64_t e = 0; e < experts; ++e) d.begin[e + 1] += d.begin[e];
  int32_t* next = arena.Take<int32_t>(experts);
  std::copy_n(d.begin, experts, next);
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t at = next[ids[i]]++;
    d.rows[at] = static_cast<int32_t>(i / k);
    d.slots[at] = static_cast<int32_t>(i);
  }
  return d;
}

// out [rows * k, Z]: every chosen expert's answer, W2 act(W1 z, W3 z), at its pair's place.
void RunExperts(const Pass& pass, const LatentMoeWeights& w, const Activations& z, const Dispatch& d, float* out) {
  Context& ctx = pass.ctx;
  const auto experts = static_cast<int64_t>(w.experts.size());
  const int64_t pairs = pass.rows() * pass.config.experts_per_token;
  const int64_t width = pass.config.moe_intermediate_size, latent = z.cols;
  float *gate = ctx.arena.Take<float>(pairs * width), *up = ctx.arena.Take<float>(pairs * width);
  auto* jobs = ctx.arena.Take<MatMulJob>(2 * experts);
  size_t n = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t count = d.begin[e + 1] - d.begin[e];
    if (count == 0) continue;
    const ExpertWeights& x = w.experts[static_cast<size_t>(e)];
    const int32_t *rows = d.rows + d.begin[e], *slots = d.slots + d.begin[e];
    jobs[n++] = {&z, &x.w1, gate, width, count, rows, slots};
    jobs[n++] = {&z, &x.w3, up, width, count, rows, slots};
  }
  MatMul(ctx, {jobs, n});
  Activate(pass, gate, up, pairs * width, gate);
  const Activations hidden = PrepareActivations(ctx, gate, pairs, width, width);
  n = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t count = d.begin[e + 1] - d.begin[e];
    const int32_t* slots = d.slots + d.begin[e];
    if (count > 0) jobs[n++] = {&hidden, &w.experts[static_cast<size_t>(e)].w2, out, latent, count, slots, slots};
  }
  MatMul(ctx, {jobs, n});
}

}  // namespace

void LatentMoe(const Pass& pass, const LatentMoeWeights& w, const float* x, float* y) {
  Context& ctx = pass.ctx;
  const ArenaScope scope(ctx.arena);
  const ModelConfig& c = pass.config;
  const int64_t rows = pass.rows(), hidden = c.hidden_size, k = c.experts_per_token;
  const bool latent = w.latent_down.rows > 0, shared = w.shared.gate.rows > 0;
  const int64_t inner = latent ? w.latent_down.rows : hidden, wide = w.shared.gate.rows;

  // Everything that reads x in one fork: router scores, the way down, the shared experts' first half.
  const Activations in = PrepareActivations(ctx, x, rows, hidden, hidden);
  float *logits = pass.Rows(c.num_experts), *z = pass.Rows(latent ? inner : 0);
  float *gate = pass.Rows(wide), *up = pass.Rows(wide);
  std::array<MatMulJob, 4> first;
  size_t n = 0;
  first[n++] = {&in, &w.router, logits, c.num_experts, rows};
  if (latent) first[n++] = {&in, &w.latent_down, z, inner, rows};
  if (shared) {
    first[n++] = {&in, &w.shared.gate, gate, wide, rows};
    first[n++] = {&in, &w.shared.up, up, wide, rows};
  }
  MatMul(ctx, std::span(first).first(n));

  auto* ids = ctx.arena.Take<int32_t>(rows * k);
  float *weights = pass.Rows(k), *answers = pass.Rows(k * inner), *u = pass.Rows(inner);
  Route(ctx, RouterShapeOf(c), logits, w.router_bias, rows, ids, weights, nullptr, nullptr);
  if (pass.probe != nullptr) pass.probe->OnExperts(pass.layer, ids, rows, k);
  RunExperts(pass, w, latent ? PrepareActivations(ctx, z, rows, inner, inner) : in, SortByExpert(pass, ids), answers);
  CombineExperts(ctx, answers, weights, rows, k, inner, u);
  if (w.latent_norm != nullptr) RmsNorm(ctx, u, w.latent_norm, pass.eps(), rows, inner, u);

  // The way up and the shared experts' second half, then their sum.
  n = 0;
  Activations u_in, s_in;
  float* routed = latent ? y : u;
  float* from_shared = pass.Rows(shared ? hidden : 0);
  if (latent) {
    u_in = PrepareActivations(ctx, u, rows, inner, inner);
    first[n++] = {&u_in, &w.latent_up, y, hidden, rows};
  }
  if (shared) {
    Activate(pass, gate, up, rows * wide, gate);
    s_in = PrepareActivations(ctx, gate, rows, wide, wide);
    first[n++] = {&s_in, &w.shared.down, from_shared, hidden, rows};
  }
  MatMul(ctx, std::span(first).first(n));
  if (!latent) std::copy_n(routed, rows * hidden, y);
  if (shared) AddTo(ctx, from_shared, rows * hidden, y);
}

}  // namespace kestrel
