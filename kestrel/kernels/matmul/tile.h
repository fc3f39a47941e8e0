// Inside of matmul: a tile is up to 12 rows of activations times one block of 32 outputs, over a range of k. Every
// instruction set brings one table of tile functions; the driver (matmul.cpp) cuts a job into tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kestrel/base/cpu.h"
#include "kestrel/kernels/matmul/packed_matrix.h"

namespace kestrel::matmul {

// 12 rows x 2 vectors are 24 accumulators of 32 registers.
inline constexpr int kMaxTileRows = 12;
inline constexpr int kSplitRows = 4;  // of SplitGroups: 16 sums and 8 totals are registers

struct TileArgs {
  const std::byte* block = nullptr;         // packed block of 32 outputs
  int64_t cols = 0;                         // its padded K
  int64_t k_begin = 0, k_end = 0;           // multiples of 8, for MXFP4 of 32
  const float* start = nullptr;             // [rows][32] sums over the k before k_begin; null: zeros
  int64_t outputs = 0;                      // of the block, 1..32
  const void* panel = nullptr;              // kPanel*, see XKind
  const uint32_t* decoded = nullptr;        // kPanelInt16: [pairs of k from k_begin][32], two int16 each
  const void* x[kMaxTileRows] = {};         // kRows*: a row each, float32, bfloat16 or int16
  const float* x_scale[kMaxTileRows] = {};  // kRowsInt16: [groups] each
  float* y[kMaxTileRows] = {};              // a row each, at the block's first output
};
// Bytes of a word column of a block; where in a block the codes and scales of an MXFP4 group stand (see
// packed_matrix.h).
inline constexpr int64_t kWordLine = kPackBlock * 4;
inline constexpr int64_t Mxfp4ScalesAt(int64_t group) { return group / 2 * kMxfp4PairBytes + group % 2 * kPackBlock; }
inline constexpr int64_t Mxfp4CodesAt(int64_t group) {
  return group / 2 * kMxfp4PairBytes + 2 * kPackBlock + group % 2 * 4 * kWordLine;
}

// 32 activations of int16 for tiles that multiply bytes: x = 256 high + low, in the order of the codes' nibbles.
struct SplitGroup {
  int8_t high[kMxfp4Group], low[kMxfp4Group];
  int32_t start;  // -12 times the sum of x
  float scale;
};

using TileFn = void (*)(const TileArgs&);

// What a tile's activations are and where they stand: rows where they are, or a panel of the tile's rows side by side.
// Exact: float32, summed in double.
enum class XKind {
  kRowsF32,
  kRowsBf16,
  kRowsInt16,
  kRowsExact,
  kPanelF32,    // [K][rows]
  kPanelBf16,   // [K/2][rows] pairs
  kPanelInt16,  // for each group of 32 k: [16][rows] pairs, then [rows] float32 scales
  kPanelExact,  // as kPanelF32
};
inline constexpr int kWeightTypes = 3, kXKinds = 8;
inline constexpr int64_t kInt16GroupWords = kMxfp4Group / 2 + 1;  // of a row in a kPanelInt16

struct TileTable {
  int max_rows = kMaxTileRows;  // of a tile
  bool bf16_panels = false;     // else panels of rounded activations are widened to float32
  // Codes of the k in [k_begin, k_end), multiples of 32, of a block -> TileArgs::decoded.
  void (*decode)(const std::byte* block, int64_t k_begin, int64_t k_end, uint32_t* out) = nullptr;
  // x [groups * 32] -> int16 and the groups' scales (int16_rows.h).
  void (*quantize)(const float* x, int64_t groups, int16_t* q, float* scale) = nullptr;
  // Where it is there, up to kSplitRows rows of kRowsInt16 are SplitGroups that it makes of a row.
  void (*split)(const int16_t* q, const float* scale, int64_t groups, SplitGroup* out) = nullptr;
  // [weight type][x kind][rows - 1]; null where a combination does not occur
  TileFn tile[kWeightTypes][kXKinds][kMaxTileRows] = {};
};

const TileTable& PortableTiles();
const TileTable& Avx2Tiles();
const TileTable& Avx512Tiles();
const TileTable& Avx512Bf16Tiles();
const TileTable& NeonTiles();
const TileTable& TilesFor(Isa isa);

}  // namespace kestrel::matmul
