// A weight matrix W [rows (outputs N), cols (inputs K)], packed once at load so that lanes are outputs.
//
// A block is kPackBlock outputs: [columns][32] 32-bit words, one word of each output side by side. A word holds one
// float32, a pair (k, k+1) of bfloat16, or eight MXFP4 codes k .. k+7: the four of even k in its lower half and the
// four of odd k in its upper half, lowest k in the lowest nibble. MXFP4 has the e8m0 bytes of 64 inputs before their
// words, [2 groups][32], so that a block is one stream. The layout is the same for every instruction set. Outputs past
// N and inputs past K are zero.
//
//   AlignedBuffer buffer(PackedBytes(WeightType::kBf16, n, k));
//   PackBf16(w, n, k, 0, PackBlocks(n), buffer.data());
//   const PackedMatrix matrix{WeightType::kBf16, n, k, buffer.data()};
#pragma once

#include <cstddef>
#include <cstdint>

#include "kestrel/base/float_types.h"

namespace kestrel {

enum class WeightType { kF32, kBf16, kMxfp4 };

inline constexpr int64_t kPackBlock = 32;  // outputs: two 512-bit vectors of float32, the best of 1, 2, 4 and 8

inline constexpr int64_t kMxfp4PairBytes = 2 * kPackBlock + 8 * kPackBlock * 4;  // two groups of 32 k: 1088

// A view; data is best 64-byte aligned (speed only).
struct PackedMatrix {
  WeightType type = WeightType::kBf16;
  int64_t rows = 0;  // outputs N
  int64_t cols = 0;  // inputs K; a multiple of 32 for MXFP4
  const std::byte* data = nullptr;
};

int64_t PackBlocks(int64_t rows);                   // number of blocks
int64_t PackedCols(WeightType type, int64_t cols);  // K with its zero padding: a multiple of 8
size_t PackedBlockBytes(WeightType type, int64_t cols);
size_t PackedBytes(WeightType type, int64_t rows, int64_t cols);

// Each packs the blocks [block_begin, block_end) into the matrix that starts at out, on the calling thread: call them
// for ranges from a pool. Sources may have any alignment (mapped files).
void PackF32(const float* w /*[rows, cols]*/, int64_t rows, int64_t cols, int64_t block_begin, int64_t block_end,
             std::byte* out);
void PackBf16(const bf16* w /*[rows, cols]*/, int64_t rows, int64_t cols, int64_t block_begin, int64_t block_end,
              std::byte* out);
// E2m1 codes, even k in the low nibble, and one e8m0 scale for 32 inputs. A scale of 255 (NaN) must have been refused.
void PackMxfp4(const uint8_t* packed /*[rows, cols/2]*/, const uint8_t* scale /*[rows, cols/32]*/, int64_t rows,
               int64_t cols, int64_t block_begin, int64_t block_end, std::byte* out);
// For y = x W with W stored [K, N]: element (k, n) is w[k * stride + n].
void PackBf16Transposed(const bf16* w /*[cols, rows], row stride*/, int64_t stride, int64_t rows, int64_t cols,
                        int64_t block_begin, int64_t block_end, std::byte* out);

}  // namespace kestrel
