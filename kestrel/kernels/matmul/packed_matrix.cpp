#include "kestrel/kernels/matmul/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "kestrel/base/check.h"

namespace kestrel {
namespace {

// GCC and Clang vectors: SSE2 on x86-64, NEON on AArch64. Packing is then bound by memory, not by these.
using U32x4 = uint32_t __attribute__((vector_size(16)));

constexpr int64_t kLine = 16;  // words of a source cache line: read whole, for strides of a power of two evict it

U32x4 LoadWords(const std::byte* p) {
  U32x4 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
void StoreWords(std::byte* p, U32x4 v) { std::memcpy(p, &v, sizeof v); }

// Eight codes as the file has them -> the four of even k in the lower half, the four of odd k in the upper.
template <class U>
U SplitNibbles(U x) {
  U even = x & 0x0f0f0f0fu;
  U odd = (x >> 4) & 0x0f0f0f0fu;
  even = (even | (even >> 4)) & 0x00ff00ffu;
  odd = (odd | (odd >> 4)) & 0x00ff00ffu;
  return (((even | (even >> 8)) & 0xffffu)) | ((odd | (odd >> 8)) << 16);
}

template <bool kNibbles>
void Transpose4x4(const std::byte* source, int64_t stride, std::byte* out) {
  U32x4 r[4];
  for (int i = 0; i < 4; ++i) {
    r[i] = LoadWords(source + i * stride);
    if constexpr (kNibbles) r[i] = SplitNibbles(r[i]);
  }
  const U32x4 a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
  const U32x4 b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
  const U32x4 c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
  const U32x4 d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  constexpr int64_t kOut = kPackBlock * 4;
  StoreWords(out, __builtin_shufflevector(a, b, 0, 1, 4, 5));
  StoreWords(out + kOut, __builtin_shufflevector(a, b, 2, 3, 6, 7));
  StoreWords(out + 2 * kOut, __builtin_shufflevector(c, d, 0, 1, 4, 5));
  StoreWords(out + 3 * kOut, __builtin_shufflevector(c, d, 2, 3, 6, 7));
}

// Where word column w of a block stands.
template <bool kNibbles>
int64_t ColumnAt(int64_t w) {
  constexpr int64_t kLineBytes = kPackBlock * 4;
  return kNibbles ? w / 8 * kMxfp4PairBytes + 2 * kPackBlock + w % 8 * kLineBytes : w * kLineBytes;
}

// One block: rows of row_bytes bytes -> [words][32] words. Whole words by 4 x 4 transposes, the rest one by one.
template <bool kNibbles>
void TransposeBlock(const std::byte* source, int64_t stride, int64_t row_bytes, int64_t rows, int64_t words,
                    std::byte* out) {
  const int64_t whole = row_bytes / 4 / kLine * kLine;  // words in full lines
  const int64_t fast_rows = rows / 4 * 4;
  for (int64_t w = 0; w < whole; w += kLine) {
    for (int64_t o = 0; o < fast_rows; o += 4) {
      for (int64_t i = 0; i < kLine; i += 4) {
        Transpose4x4<kNibbles>(source + o * stride + (w + i) * 4, stride, out + ColumnAt<kNibbles>(w + i) + o * 4);
      }
    }
  }
  for (int64_t o = 0; o < rows; ++o) {
    for (int64_t w = o < fast_rows ? whole : 0; w < words; ++w) {
      const int64_t left = std::clamp<int64_t>(row_bytes - w * 4, 0, 4);
      uint32_t word = 0;
      std::memcpy(&word, source + o * stride + w * 4, static_cast<size_t>(left));
      if constexpr (kNibbles) word = SplitNibbles(word);
      std::memcpy(out + ColumnAt<kNibbles>(w) + o * 4, &word, 4);
    }
  }
}

template <class T>
void PackPlain(const T* w, WeightType type, int64_t rows, int64_t cols, int64_t block_begin, int64_t block_end,
               std::byte* out) {
  const auto* source = reinterpret_cast<const std::byte*>(w);
  const auto row_bytes = cols * static_cast<int64_t>(sizeof(T));
  const auto words = PackedCols(type, cols) * static_cast<int64_t>(sizeof(T)) / 4;
  for (int64_t b = block_begin; b < block_end; ++b) {
    const int64_t n = std::min(kPackBlock, rows - b * kPackBlock);
    if (n < kPackBlock) std::memset(out + b * words * kPackBlock * 4, 0, static_cast<size_t>(words * kPackBlock * 4));
    TransposeBlock<false>(source + b * kPackBlock * row_bytes, row_bytes, row_bytes, n, words,
                          out + b * words * kPackBlock * 4);
  }
}

}  // namespace

int64_t PackBlocks(int64_t rows) { return (rows + kPackBlock - 1) / kPackBlock; }

int64_t PackedCols(WeightType type, int64_t cols) {
  KESTREL_CHECK(type != WeightType::kMxfp4 || cols % kMxfp4Group == 0);
  return (cols + 7) / 8 * 8;
}

size_t PackedBlockBytes(WeightType type, int64_t cols) {
  const auto k = static_cast<size_t>(PackedCols(type, cols));
  switch (type) {
    case WeightType::kF32:
      return k * kPackBlock * 4;
    case WeightType::kBf16:
      return k * kPackBlock * 2;
    case WeightType::kMxfp4:
      return (k / kMxfp4Group + 1) / 2 * kMxfp4PairBytes;
  }
  KESTREL_CHECK(false);
}

size_t PackedBytes(WeightType type, int64_t rows, int64_t cols) {
  return static_cast<size_t>(PackBlocks(rows)) * PackedBlockBytes(type, cols);
}

void PackF32(const float* w, int64_t rows, int64_t cols, int64_t block_begin, int64_t block_end, std::byte* out) {
  PackPlain(w, WeightType::kF32, rows, cols, block_begin, block_end, out);
}

void PackBf16(const bf16* w, int64_t rows, int64_t cols, int64_t block_begin, int64_t block_end, std::byte* out) {
  PackPlain(w, WeightType::kBf16, rows, cols, block_begin, block_end, out);
}

void PackMxfp4(const uint8_t* packed, const uint8_t* scale, int64_t rows, int64_t cols, int64_t block_begin,
               int64_t block_end, std::byte* out) {
  const auto* source = reinterpret_cast<const std::byte*>(packed);
  const auto block_bytes = static_cast<int64_t>(PackedBlockBytes(WeightType::kMxfp4, cols));
  const int64_t groups = cols / kMxfp4Group;
  for (int64_t b = block_begin; b < block_end; ++b) {
    const int64_t first = b * kPackBlock;
    const int64_t n = std::min(kPackBlock, rows - first);
    std::byte* block = out + b * block_bytes;
    if (n < kPackBlock || groups % 2 > 0) std::memset(block, 0, static_cast<size_t>(block_bytes));
    TransposeBlock<true>(source + first * (cols / 2), cols / 2, cols / 2, n, cols / 8, block);
    for (int64_t g = 0; g < groups; g += 2) {  // groups outside: a block is larger than L1, the rows' scales are not
      std::byte* to = block + g / 2 * kMxfp4PairBytes;
      const uint8_t* from = scale + first * groups + g;
      for (int64_t o = 0; o < n; ++o) to[o] = static_cast<std::byte>(from[o * groups]);
      if (g + 1 == groups) break;
      for (int64_t o = 0; o < n; ++o) to[kPackBlock + o] = static_cast<std::byte>(from[o * groups + 1]);
    }
  }
}

void PackBf16Transposed(const bf16* w, int64_t stride, int64_t rows, int64_t cols, int64_t block_begin,
                        int64_t block_end, std::byte* out) {
  const auto* source = reinterpret_cast<const std::byte*>(w);
  const auto block_bytes = static_cast<int64_t>(PackedBlockBytes(WeightType::kBf16, cols));
  const int64_t pairs = PackedCols(WeightType::kBf16, cols) / 2;
  constexpr int64_t kPairsAtOnce = 8;  // rows of w are read in 16 streams across the blocks
  for (int64_t first = 0; first < pairs; first += kPairsAtOnce) {
    for (int64_t b = block_begin; b < block_end; ++b) {
      const auto bytes = static_cast<size_t>(std::min(kPackBlock, rows - b * kPackBlock)) * 2;
      for (int64_t p = first; p < std::min(pairs, first + kPairsAtOnce); ++p) {
        uint16_t even[kPackBlock] = {};
        uint16_t odd[kPackBlock] = {};
        if (2 * p < cols) std::memcpy(even, source + (2 * p * stride + b * kPackBlock) * 2, bytes);
        if (2 * p + 1 < cols) std::memcpy(odd, source + ((2 * p + 1) * stride + b * kPackBlock) * 2, bytes);
        uint32_t words[kPackBlock];
        for (int i = 0; i < kPackBlock; ++i) words[i] = even[i] | static_cast<uint32_t>(odd[i]) << 16;
        std::memcpy(out + b * block_bytes + p * kPackBlock * 4, words, sizeof words);
      }
    }
  }
}

}  // namespace kestrel
