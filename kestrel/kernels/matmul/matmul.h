// y = x W^T for packed weights: rows of activations [rows, K] times W [N, K] give y [rows, N], float32.
//
// MatMulMode::kBf16, by the weights' type:
//   bfloat16  times activations rounded to bfloat16 (float32 where they are narrow, see kExactCols), sums in float32;
//   MXFP4     times activations as int16, 32 columns to a scale (int16_rows.h): a group's sum is exact, the groups' are
//             added in float32; the same bits on every instruction set;
//   float32   as in kF32.
// kF32: the exact weight times the float32 activation, summed in double and rounded once; the same bits on every
// instruction set. Every sum runs over k in one fixed order: a row's bits do not depend on the other rows, the jobs
// beside it or the number of threads.
//
//   const Activations x = PrepareActivations(ctx, h, tokens, width, width);
//   const MatMulJob jobs[] = {{&x, &wq, q, q_width, tokens}, {&x, &wk, k, k_width, tokens}};
//   MatMul(ctx, jobs);
#pragma once

#include <cstdint>
#include <span>

#include "kestrel/kernels/matmul/packed_matrix.h"
#include "kestrel/tensor/context.h"

namespace kestrel {

// bfloat16 weights round only inputs wider than this. Narrow products are a small part of a large model's time and all
// of a small model's accuracy: a random 13-layer model of width 128 turns one rounded input a layer into a median error
// of 0.18.
inline constexpr int64_t kExactCols = 512;

// Padded activations; a view into an arena, or of the caller's rows.
struct Activations {
  const float* f32 = nullptr;     // [rows, stride]
  const bf16* rounded = nullptr;  // [rows, stride]; null in f32 mode and up to kExactCols
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements, both arrays; columns from cols up to the next multiple of 32 are zero
};

// x [rows, cols] (row stride x_stride), padded, and rounded to nearest even once, in ctx.arena. Rows that need no
// padding are used where they stand: x must stay as it is while the result is in use.
Activations PrepareActivations(Context& ctx, const float* x, int64_t rows, int64_t cols, int64_t x_stride);

struct MatMulJob {
  const Activations* x = nullptr;
  const PackedMatrix* w = nullptr;
  float* y = nullptr;  // [rows or max(y_rows) + 1, y_stride]
  int64_t y_stride = 0;
  int64_t rows = 0;
  const int32_t* x_rows = nullptr;  // [rows]; row r reads x row x_rows[r]
  const int32_t* y_rows = nullptr;  // [rows], distinct; row r writes y row y_rows[r]
};

// All jobs in one fork-join, and one each for what comes first: many inputs of MXFP4 weights to int16, and the panels
// of jobs with more than kDirectRows rows.
// Jobs must not write the same element of y, nor write what another reads. Scratch comes from ctx.arena.
void MatMul(Context& ctx, std::span<const MatMulJob> jobs);
void MatMul(Context& ctx, const Activations& x, const PackedMatrix& w, float* y, int64_t y_stride);

inline constexpr int64_t kDirectRows = 8;  // up to here weights are streamed past the rows where they stand

}  // namespace kestrel
