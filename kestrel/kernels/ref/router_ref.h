// Scalar double reference of the router, one row: a full stable sort.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kestrel/kernels/router.h"

namespace kestrel {

struct RouteRefResult {
  std::vector<int32_t> order;   // all experts, best first
  std::vector<double> biased;   // [E]
  std::vector<double> weights;  // [k]
};

inline RouteRefResult RouteRef(const RouterShape& shape, const float* logits /*[E]*/, const float* bias /*[E]*/) {
  const size_t E = static_cast<size_t>(shape.experts), size = E / static_cast<size_t>(shape.groups);
  std::vector<double> score(E);
  double norm = 0;
  for (size_t e = 0; e < E; ++e) norm += std::exp(double{logits[e]});
  for (size_t e = 0; e < E; ++e)
    score[e] = shape.sigmoid ? 1 / (1 + std::exp(-double{logits[e]})) : std::exp(double{logits[e]}) / norm;
  RouteRefResult result;
  for (size_t e = 0; e < E; ++e) result.biased.push_back(score[e] + bias[e]);
  if (shape.groups > shape.topk_groups) {
    std::vector<std::pair<double, size_t>> groups;  // (- best two, index)
    for (size_t g = 0; g < static_cast<size_t>(shape.groups); ++g) {
      std::vector<double> part(result.biased.begin() + static_cast<int64_t>(g * size),
                               result.biased.begin() + static_cast<int64_t>((g + 1) * size));
      std::sort(part.rbegin(), part.rend());
      groups.emplace_back(-(part[0] + (size > 1 ? part[1] : 0)), g);
    }
    std::sort(groups.begin(), groups.end());
    for (size_t g = static_cast<size_t>(shape.topk_groups); g < groups.size(); ++g) {
      for (size_t i = 0; i < size; ++i)
        result.biased[groups[g].second * size + i] = -std::numeric_limits<double>::infinity();
    }
  }
  result.order.resize(E);
  std::iota(result.order.begin(), result.order.end(), 0);
  std::stable_sort(result.order.begin(), result.order.end(), [&](int32_t a, int32_t b) {
    return result.biased[static_cast<size_t>(a)] > result.biased[static_cast<size_t>(b)];
  });
  double sum = 0;
  for (int s = 0; s < shape.top_k; ++s) sum += score[static_cast<size_t>(result.order[static_cast<size_t>(s)])];
  for (int s = 0; s < shape.top_k; ++s)
    result.weights.push_back(score[static_cast<size_t>(result.order[static_cast<size_t>(s)])] /
                             (shape.renormalize ? sum + 1e-20 : 1) * shape.scale);
  return result;
}

}  // namespace kestrel
