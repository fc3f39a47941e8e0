// Gated MLA's attention over a paged latent cache. A position's latent is [c ; r]: `rank` channels that the key and
// value matrices expand, and `rope` channels that all heads share as they are (K3 rotates nothing, but they count in
// the score).
//   k_h = [W_kb,h c ; r]    v_h = W_vb,h c    o_h = softmax(scale q_h k_h^T, causal) v_h
// MlaPrefill computes that for many rows; MlaDecode the same with W_kb absorbed into the query and W_vb left to the
// caller, on the latents directly (2176 FLOP a head, row and key at K3's sizes, against 640 and 262144 a head and key
// to expand: below about 170 rows MlaDecode is the cheaper). The two round differently. Keys come in tiles of 64
// aligned to absolute positions, in ascending order (MlaDecode: in at most 8 chunks that depend on the row's number of
// keys alone), so a row has the same bits however the prompt is cut, whatever shares the call and for any thread count.
// ctx.matmul kBf16: operands are rounded to bfloat16 where the CPU multiplies those; sums and softmax are float32.
#pragma once

#include <cstdint>
#include <span>

#include "kestrel/tensor/context.h"

namespace kestrel {

inline constexpr int64_t kMlaPageTokens = 64;

struct MlaShape {
  int heads = 0;
  int nope = 0;  // key channels from the latent
  int rope = 0;  // key channels shared by the heads
  int v_dim = 0;
  int rank = 0;
  float scale = 1;  // 1 / sqrt(nope + rope)
};

// Page p holds positions 64p .. 64p + 63: [64, rank + rope], 64-byte aligned. Rows not written yet may hold anything.
struct MlaCache {
  const void* const* pages = nullptr;
  bool bf16_latent = false;  // else float32
};

// Rows first_row .. first_row + rows - 1 of the call belong to one sequence; row i of them sees keys 0 .. position + i,
// which are in the pages already.
struct MlaSegment {
  MlaCache cache;
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t position = 0;
};

// kv_b_proj as in the checkpoint: [heads * (nope + v_dim), rank], a head's key rows first.
struct MlaUpProjection {
  const void* kv_b = nullptr;
  bool is_bf16 = false;  // else float32
};

void MlaDecode(Context& ctx, const MlaShape& shape, std::span<const MlaSegment> segments,
               const float* q_latent /*[rows, heads, rank + rope]*/, float* out /*[rows, heads, rank]*/);

void MlaPrefill(Context& ctx, const MlaShape& shape, std::span<const MlaSegment> segments,
                const float* q /*[rows, heads, nope + rope]*/, const MlaUpProjection& up,
                float* out /*[rows, heads, v_dim]*/);

}  // namespace kestrel
