// What one forward pass works on: rows of several sequences at once.
//
//   Batch batch{.ids = ids, .segments = {{&a, 0, 7, Phase::kPrefill}, {&b, 7, 1, Phase::kDecode}}, .logit_rows = {6,
//   7}};
#pragma once

#include <cstdint>
#include <span>

#include "kestrel/model/state.h"

namespace kestrel {

// How MLA attends: kPrefill expands keys and values from the latents, kDecode absorbs them. Both compute the same
// function, but round differently, so the phase is the caller's word and not guessed from the number of rows: a
// prompt's row has the same bits in any chunk size, a decoded row in any batch.
enum class Phase { kPrefill, kDecode };

// Consecutive rows of the batch that belong to one sequence and follow its state's position.
struct Segment {
  SequenceState* state;
  int64_t first_row;
  int64_t rows;
  Phase phase = Phase::kPrefill;
};

struct Batch {
  std::span<const int32_t> ids;  // [rows]
  std::span<const Segment> segments;
  std::span<const int32_t> logit_rows;  // ascending rows whose logits are wanted
};

// Sees what a layer computed; null in ordinary runs.
class Probe {
 public:
  virtual ~Probe() = default;
  virtual void OnRows(int layer, const char* what, const float* x, int64_t rows,
                      int64_t width) = 0;              // mixer, ffn, partial
  virtual void OnMixture(bool begin) { (void)begin; }  // around each read over depth, for timing
  virtual void OnExperts(int layer, const int32_t* ids, int64_t rows, int64_t k) = 0;  // best first
};

}  // namespace kestrel
