// Scalar double reference of depth attention, one row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace kestrel {

inline std::vector<double> DepthAttentionRef(const std::vector<const float*>& sources /*each [D]*/,
                                             const float* direction /*[D]*/, double eps, int64_t D) {
  std::vector<double> score, out(static_cast<size_t>(D));
  for (const float* v : sources) {
    double dot = 0, square = 0;
    for (int64_t i = 0; i < D; ++i) dot += double{v[i]} * direction[i], square += double{v[i]} * v[i];
    score.push_back(dot / std::sqrt(square / static_cast<double>(D) + eps));
  }
  const double largest = *std::max_element(score.begin(), score.end());
  double sum = 0;
  for (double& s : score) sum += s = std::exp(s - largest);
  for (size_t s = 0; s < sources.size(); ++s) {
    for (int64_t i = 0; i < D; ++i) out[static_cast<size_t>(i)] += score[s] / sum * sources[s][i];
  }
  return out;
}

}  // namespace kestrel
