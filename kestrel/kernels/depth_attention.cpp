#include "kestrel/kernels/depth_attention.h"

#include <algorithm>
#include <cmath>

#include "kestrel/base/check.h"
#include "kestrel/kernels/parallel.h"
#include "kestrel/kernels/simd/vector_table.h"

namespace kestrel {
namespace {

constexpr int64_t kMaxSources = 64;  // the release ends with 9

float Score(const VectorTable& table, const float* v, const float* direction, float eps, int64_t D) {
  float dot, square;
  table.dot_and_square(v, direction, D, &dot, &square);
  return dot / std::sqrt(square / static_cast<float>(D) + eps);
}

// One row: out = softmax-weighted sum of `count` vectors.
void MixRow(const VectorTable& table, const float* const* v, int64_t count, const float* direction, float eps,
            int64_t D, float* out) {
  float weights[kMaxSources];
  for (int64_t s = 0; s < count; ++s) weights[s] = Score(table, v[s], direction, eps, D);
  table.softmax(weights, count);
  table.weighted_sum(v, weights, count, D, out);
}

// f(row, vectors of that row, count) for every row.
template <class F>
void ForMixedRows(Context& ctx, std::span<const float* const> sources, const float* partial, int64_t rows, int64_t D,
                  F&& f) {
  const int64_t finished = static_cast<int64_t>(sources.size());
  const int64_t count = finished + (partial != nullptr);
  KESTREL_CHECK(count >= 1 && count <= kMaxSources);
  ForRows(ctx, rows, 0.2 * static_cast<double>(count * D), [&](int64_t r) {
    const float* v[kMaxSources];
    for (int64_t s = 0; s < finished; ++s) v[s] = sources[static_cast<size_t>(s)] + r * D;
    if (partial) v[finished] = partial + r * D;
    f(r, v, count);
  });
}

}  // namespace

void DepthAttention(Context& ctx, std::span<const float* const> sources, const float* partial, const float* direction,
                    float eps, int64_t rows, int64_t D, float* out) {
  const VectorTable& table = GetVectorTable(ctx.isa);
  ForMixedRows(ctx, sources, partial, rows, D, [&](int64_t r, const float* const* v, int64_t count) {
    MixRow(table, v, count, direction, eps, D, out + r * D);
  });
}

void DepthAttentionNorm(Context& ctx, std::span<const float* const> sources, const float* partial,
                        const float* direction, float eps, int64_t rows, int64_t D, const float* norm_w, float norm_eps,
                        float* out) {
  const VectorTable& table = GetVectorTable(ctx.isa);
  ForMixedRows(ctx, sources, partial, rows, D, [&](int64_t r, const float* const* v, int64_t count) {
    MixRow(table, v, count, direction, eps, D, out + r * D);
    table.rms_norm(out + r * D, norm_w, norm_eps, D, out + r * D);
  });
}

void DepthAttentionFinished(Context& ctx, std::span<const float* const> sources,
                            std::span<const float* const> directions, float eps, int64_t rows, int64_t D,
                            const DepthState& state) {
  const VectorTable& table = GetVectorTable(ctx.isa);
  const int64_t count_directions = static_cast<int64_t>(directions.size());
  ForMixedRows(ctx, sources, nullptr, rows, D, [&](int64_t r, const float* const* v, int64_t count) {
    for (int64_t j = 0; j < count_directions; ++j) {
      float weights[kMaxSources] = {};
      for (int64_t s = 0; s < count; ++s) weights[s] = Score(table, v[s], directions[static_cast<size_t>(j)], eps, D);
      const float largest = *std::max_element(weights, weights + count);
      for (int64_t s = 0; s < count; ++s) weights[s] -= largest;
      table.exp(weights, count, weights);
      float sum = 0;
      for (int64_t s = 0; s < count; ++s) sum += weights[s];
      state.largest[j * rows + r] = largest;
      state.sum[j * rows + r] = sum;
      table.weighted_sum(v, weights, count, D, state.mix + (j * rows + r) * D);
    }
  });
}

void DepthAttentionMerge(Context& ctx, const DepthState& state, int64_t index, const float* partial,
                         const float* direction, float eps, int64_t rows, int64_t D, float* out) {
  const VectorTable& table = GetVectorTable(ctx.isa);
  ForRows(ctx, rows, 0.3 * static_cast<double>(D), [&](int64_t r) {
    const int64_t at = index * rows + r;
    const float score = partial ? Score(table, partial + r * D, direction, eps, D) : state.largest[at];
    const float largest = std::max(state.largest[at], score);
    float e[2] = {state.largest[at] - largest, score - largest};
    table.exp(e, 2, e);
    const float inverse = 1 / (e[0] * state.sum[at] + (partial ? e[1] : 0.0f));
    const float weights[2] = {e[0] * inverse, e[1] * inverse};
    const float* v[2] = {state.mix + at * D, partial ? partial + r * D : nullptr};
    table.weighted_sum(v, weights, partial ? 2 : 1, D, out + r * D);
  });
}

}  // namespace kestrel
