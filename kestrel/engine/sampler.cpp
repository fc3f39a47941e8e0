#include "kestrel/engine/sampler.h"

#include <algorithm>
#include <cmath>

namespace kestrel {

Sampler::Sampler(const SamplingOptions& options, int64_t vocab)
    : options_(options),
      rng_(options.seed),
      candidates_(static_cast<size_t>(vocab)),
      weights_(static_cast<size_t>(vocab)) {}

Result<int32_t> Sampler::Sample(std::span<const float> logits) {
  int32_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return Err(ErrorCode::kNotFinite, "[engine.sample] logit of token {}: got {}, want a finite number", i,
                 logits[i]);
    }
    if (logits[i] > logits[static_cast<size_t>(best)]) best = static_cast<int32_t>(i);
  }
  if (options_.temperature <= 0) return best;

  for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {logits[i], static_cast<int32_t>(i)};
  size_t n = logits.size();
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const bool cut = options_.top_k > 0 || options_.top_p < 1 || options_.min_p > 0;
  if (options_.top_k > 0) n = std::min(n, static_cast<size_t>(options_.top_k));
  if (cut)
    std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(n), candidates_.end(), before);

  const double top = logits[static_cast<size_t>(best)];
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    weights_[i] = std::exp((static_cast<double>(candidates_[i].logit) - top) / options_.temperature);
    if (options_.min_p > 0 && weights_[i] < options_.min_p) {
      n = i;
      break;
    }
    sum += weights_[i];
  }
  if (options_.top_p < 1) {
    double kept = 0;
    size_t m = 0;
    while (m < n && kept < options_.top_p * sum) kept += weights_[m++];
    n = std::max<size_t>(m, 1);
    sum = std::max(kept, weights_[0]);
  }
  double at = rng_.Uniform() * sum;
  for (size_t i = 0; i < n; ++i) {
    at -= weights_[i];
    if (at < 0) return candidates_[i].id;
  }
  return candidates_[n - 1].id;
}

}  // namespace kestrel
