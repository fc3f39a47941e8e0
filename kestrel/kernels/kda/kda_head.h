// What the KDA kernels of the instruction sets share: where things lie in a state, and one head's work.
//
// A state is a 64-byte header (int32 rows pending), then for each head, in floats:
//   S         panels of 16 values; in a panel the keys go by pairs: [value / 16][key / 2][value % 16][key % 2]
//   log_decay [dim]      sum of g log2(e) over the pending rows
//   decay     [dim]      product of alpha over the pending rows
//   keys      [16, dim]  pending k_j, decayed to the last row seen: the product of the alphas since j
//   values    [16, dim]  pending v'_j = beta_j (v_j - what memory already answers for k_j)
//   peaks     [dim]      the largest magnitude in each value's column of S, as bits: NaN is above infinity
// The pairs are what VPDPWSSD adds in one lane: two float32 vectors pack to one of int16 pairs in a single step.
// Decayed keys need no exponential of a difference, never exceed 1 and suit every gate; the log beside the product is
// there because a constant alpha rounds the same way each token, and exp of the sum rounds once in 16.
#pragma once

#include <cstdint>
#include <cstring>

#include "kestrel/kernels/kda/kda.h"

namespace kestrel::kda {

inline constexpr float kLog2E = 1.44269504f;
inline constexpr int kTile = 16;   // tokens between writes of S
inline constexpr int kPanel = 16;  // values in a panel of S
inline constexpr int64_t kHeaderBytes = 64;

struct Layout {
  explicit Layout(int head_dim)
      : dim(head_dim), padded((head_dim + 15) / 16 * 16), pairs((head_dim + 1) / 2), panels((head_dim + 15) / 16) {}
  int64_t dim, padded, pairs, panels;
  int64_t StateFloats() const { return (panels * pairs * 2 * kPanel + 15) / 16 * 16; }
  int64_t HeadFloats() const { return StateFloats() + (2 + 2 * kTile + 1) * padded; }
  int64_t Index(int64_t key, int64_t value) const {
    return ((value / kPanel * pairs + key / 2) * kPanel + value % kPanel) * 2 + key % 2;
  }
};

// Rows of one head in one segment.
struct HeadTask {
  int dim;
  bool bounded;
  float lower_bound;
  bool narrow;  // round the inputs of the products with S to int16
  float *s, *log_decay, *decay, *keys, *values, *peaks;
  int pending;
  int64_t rows;
  const float *q, *k, *v, *z;  // first row of the segment, first channel of the head
  int64_t stride;              // between rows of q, k, v, z and out
  const float* beta;
  int64_t beta_stride;
  const float* dt_bias;  // [dim]
  float a;
  float* out;
  float* scratch;  // ScratchFloats(dim)
};

// Scales of a row of x: one for 32 keys, by fours.
inline int64_t XScales(int64_t dim) { return (dim + 127) / 128 * 4; }

// The new rows of a tile while it is worked on.
struct TileScratch {
  TileScratch(float* p, int64_t dim)
      : x(p),
        answers(x + 2 * kTile * dim),
        q(answers + 2 * kTile * dim),
        alpha(q + kTile * dim),
        beta(alpha + kTile * dim),
        x_scales(beta + kTile),
        panel(x_scales + 2 * kTile * XScales(dim)) {}
  float* x;         // [rows, 2, dim] k and q, times the tile's decay up to the row; float32 or int16
  float* answers;   // [rows, 2, dim] S^T x
  float* q;         // [rows, dim] normalised and scaled
  float* alpha;     // [rows, dim]
  float* beta;      // [rows]
  float* x_scales;  // [rows, 2, XScales] what an int16 level of x is worth
  float* panel;     // four panels of S in int16
};
inline int64_t ScratchFloats(int64_t dim) {
  const int64_t padded = (dim + 15) / 16 * 16;
  return 6 * kTile * padded + kTile + 2 * kTile * XScales(dim) + 4 * kPanel * ((dim + 1) / 2) + 64;
}

using ForwardHead = void (*)(const HeadTask&);
void ForwardHeadPortable(const HeadTask& task);  // any dim
void ForwardHeadAvx2(const HeadTask& task);      // dim a multiple of 16, here and below
void ForwardHeadAvx512(const HeadTask& task);

// The order of work is the same for every instruction set. Ops has Prepare(task, scratch, row, count, slot),
// Answer(task, scratch, row, count), Finish(task, scratch, row, count, slot) and Fold(task, row): row counts in the
// segment, slot in the tile, and both move by one through the count new rows.
template <class Ops>
void RunHead(const HeadTask& task) {
  const TileScratch scratch(task.scratch, task.dim);
  int pending = task.pending;
  for (int64_t row = 0; row < task.rows;) {
    const int64_t left = task.rows - row;
    const int count = left < kTile - pending ? static_cast<int>(left) : kTile - pending;
    Ops::Prepare(task, scratch, row, count, pending);
    Ops::Answer(task, scratch, row, count);
    Ops::Finish(task, scratch, row, count, pending);
    row += count;
    pending += count;
    if (pending == kTile) {
      Ops::Fold(task, row);
      pending = 0;
    }
  }
}

}  // namespace kestrel::kda
