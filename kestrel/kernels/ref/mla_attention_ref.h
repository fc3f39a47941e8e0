// Scalar double reference of causal attention of one row and head over explicit keys and values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace kestrel {

struct AttentionRefResult {
  std::vector<double> out;  // [channels]
  double weight_norm = 0;   // sqrt(sum of squared probabilities): the size of out where values are of size 1
};

// q: [width]; key: [keys, width]; value: [keys, channels].
inline AttentionRefResult AttentionRef(const std::vector<double>& q, const std::vector<double>& key,
                                       const std::vector<double>& value, size_t keys, size_t channels, double scale) {
  const size_t width = q.size();
  std::vector<double> p(keys);
  AttentionRefResult result = {std::vector<double>(channels), 0};
  for (size_t k = 0; k < keys; ++k) {
    for (size_t i = 0; i < width; ++i) p[k] += scale * q[i] * key[k * width + i];
  }
  const double largest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - largest);
  for (size_t k = 0; k < keys; ++k) {
    result.weight_norm += p[k] / sum * (p[k] / sum);
    for (size_t c = 0; c < channels; ++c) result.out[c] += p[k] / sum * value[k * channels + c];
  }
  result.weight_norm = std::sqrt(result.weight_norm);
  return result;
}

}  // namespace kestrel
