#include "kestrel/kernels/router.h"

#include <algorithm>
#include <limits>

#include "kestrel/base/check.h"
#include "kestrel/kernels/parallel.h"
#include "kestrel/kernels/simd/vector_table.h"

namespace kestrel {
namespace {

constexpr int kMaxTopK = 64;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// The `count` best of x[n], best first, earlier index first among equals: one pass over x against the worst one kept.
// About count * ln(n / count) of them enter, 70 of 896 for the best 17, so that the sorted insertion costs little.
int Best(const float* x, int n, int count, int32_t* ids, float* values) {
  int kept = 0;
  float worst = kLowest;
  for (int i = 0; i < n; ++i) {
    if (kept == count && !(x[i] > worst)) continue;
    int at = kept < count ? kept++ : count - 1;
    for (; at > 0 && x[i] > values[at - 1]; --at) {
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
    }
    values[at] = x[i];
    ids[at] = i;
    worst = values[kept - 1];
  }
  return kept;
}

// Sets the biased scores of all but the best topk_groups groups to minus infinity.
void KeepBestGroups(const RouterShape& shape, float* biased, float* group_scores) {
  const int size = shape.experts / shape.groups;
  for (int g = 0; g < shape.groups; ++g) {
    int32_t ids[2];
    float best[2] = {0, 0};
    Best(biased + g * size, size, 2, ids, best);
    group_scores[g] = best[0] + best[1];
  }
  for (int g = 0; g < shape.groups; ++g) {
    int better = 0;  // groups ahead of g; an equal one is ahead if it comes first
    for (int o = 0; o < shape.groups; ++o)
      better += group_scores[o] > group_scores[g] || (group_scores[o] == group_scores[g] && o < g);
    if (better >= shape.topk_groups) std::fill_n(biased + g * size, size, kLowest);
  }
}

struct Row {
  const float* logits;  // [E]
  int32_t* ids;         // [k]
  float* weights;       // [k]
  float* cutoff;        // one, or null
  float* scores;        // [E]
  float* biased;        // [2 E] scratch; the second half serves the groups
};

void RouteRow(const VectorTable& table, const RouterShape& shape, const float* bias, const Row& row) {
  const int E = shape.experts, k = shape.top_k;
  if (shape.sigmoid) {
    table.sigmoid(row.logits, E, row.scores);
  } else {
    std::copy_n(row.logits, E, row.scores);
    table.softmax(row.scores, E);
  }
  for (int e = 0; e < E; ++e) {
    const float b = row.scores[e] + bias[e];
    row.biased[e] = b == b ? b : kLowest;
  }
  if (shape.groups > shape.topk_groups) KeepBestGroups(shape, row.biased, row.biased + E);

  int32_t ids[kMaxTopK + 1];
  float values[kMaxTopK + 1];
  const int kept = Best(row.biased, E, std::min(E, k + 1), ids, values);
  float sum = 0;
  for (int s = 0; s < k; ++s) {
    row.ids[s] = ids[s];
    row.weights[s] = row.scores[ids[s]];
    sum += row.weights[s];
  }
  const float factor = shape.renormalize ? shape.scale / (sum + 1e-20f) : shape.scale;
  for (int s = 0; s < k; ++s) row.weights[s] *= factor;
  if (row.cutoff) *row.cutoff = kept > k ? values[k] : kLowest;
}

}  // namespace

void Route(Context& ctx, const RouterShape& shape, const float* logits, const float* bias, int64_t rows, int32_t* ids,
           float* weights, float* cutoff, float* scores) {
  const int64_t E = shape.experts, k = shape.top_k;
  KESTREL_CHECK(k >= 1 && k <= kMaxTopK && k <= E && shape.groups >= 1 && E % shape.groups == 0);
  const VectorTable& table = GetVectorTable(ctx.isa);
  constexpr int64_t kPiece = 4;  // rows of a task: about 8 us at 896 experts
  const int64_t pieces = (rows + kPiece - 1) / kPiece;
  const ArenaScope scope(ctx.arena);
  float* scratch = ctx.arena.Take<float>(ctx.pool.size() * 3 * E);
  const auto run = [&](int64_t piece, int worker) {
    float* mine = scratch + worker * 3 * E;
    for (int64_t r = piece * kPiece; r < std::min(rows, (piece + 1) * kPiece); ++r) {
      RouteRow(table, shape, bias,
               {logits + r * E, ids + r * k, weights + r * k, cutoff ? cutoff + r : nullptr,
                scores ? scores + r * E : mine, mine + E});
    }
  };
  if (rows * E < 10000) {
    for (int64_t p = 0; p < pieces; ++p) run(p, 0);
  } else {
    ctx.pool.Run(pieces, run);
  }
}

}  // namespace kestrel
