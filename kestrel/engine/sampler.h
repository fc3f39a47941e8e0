// Picks the next token from logits. Temperature 0 is the first maximum; else softmax at the temperature, cut by top-k,
// then min-p (of the largest probability), then top-p, and one uniform number from the seed. Non-finite logits are
// refused, so that a NaN never becomes token 0.
//
//   Sampler sampler({.temperature = 1, .top_p = 0.95, .seed = 7}, vocab);
//   KESTREL_ASSIGN_OR_RETURN(int32_t id, sampler.Sample(logits));
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kestrel/base/result.h"
#include "kestrel/base/rng.h"

namespace kestrel {

struct SamplingOptions {
  double temperature = 0;
  double top_p = 1;  // smallest set of probability at least top_p
  int top_k = 0;     // 0: off
  double min_p = 0;  // 0: off
  uint64_t seed = 0;
};

class Sampler {
 public:
  Sampler(const SamplingOptions& options, int64_t vocab);
  // logits [V]. kNotFinite where a logit is NaN or infinite. Allocates nothing.
  Result<int32_t> Sample(std::span<const float> logits);

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  SamplingOptions options_;
  Rng rng_;
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

}  // namespace kestrel
