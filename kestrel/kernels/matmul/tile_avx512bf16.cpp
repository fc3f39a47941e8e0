// Tiles with VDPBF16PS: in each lane (an output) it adds the products of the pair (k, k+1) to a float32.
#include "kestrel/kernels/matmul/tile.h"

#if defined(__x86_64__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC bug 105593, in its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <utility>

#include "kestrel/kernels/matmul/matmul.h"

#define KESTREL_TARGET __attribute__((target("avx512f,avx512bf16,avx512bw,avx512vl,avx512dq")))
#define KESTREL_INLINE KESTREL_TARGET __attribute__((always_inline)) inline
#define KESTREL_UNROLL _Pragma("GCC unroll 16")
#define KESTREL_PREFETCH(p) _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0)

namespace kestrel::matmul {
namespace {

constexpr int64_t kPrefetchBytes = 4096;
constexpr int kTotalsInRegisters = 6;  // rows: 12 sums and 12 totals of 32 registers

template <int R>
struct Rows {
  const float* row[R];
  KESTREL_INLINE explicit Rows(const TileArgs& a) {
    KESTREL_UNROLL for (int r = 0; r < R; ++r) row[r] = static_cast<const float*>(a.x[r]);
  }
  KESTREL_INLINE const float* At(int r, int64_t pair) const { return row[r] + pair; }
};

template <int R>
struct Panel {
  const float* panel;
  KESTREL_INLINE explicit Panel(const TileArgs& a) : panel(static_cast<const float*>(a.panel)) {}
  KESTREL_INLINE const float* At(int r, int64_t pair) const { return panel + pair * R + r; }
};

// acc0, acc1 += w0, w1 times the pair at x in all lanes. The broadcast is a memory operand, twice: GCC would load it
// into a register once, and a 512-bit load takes a slot of the vector pipes on Zen 4 (187 against 214 GFLOP/s at 6
// rows).
KESTREL_INLINE void DotPair(__m512bh w0, __m512bh w1, const float* x, __m512& acc0, __m512& acc1) {
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(acc0) : "v"(w0), "m"(*x));
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(acc1) : "v"(w1), "m"(*x));
}

KESTREL_INLINE __mmask16 OutputMask(int64_t outputs) {
  return outputs >= 16 ? 0xffff : outputs <= 0 ? 0 : static_cast<__mmask16>((1u << outputs) - 1);
}

template <int R>
KESTREL_INLINE void LoadHalf(const TileArgs& a, int half, __m512 (&acc)[R]) {
  KESTREL_UNROLL for (int r = 0; r < R; ++r) {
    acc[r] = a.start ? _mm512_loadu_ps(a.start + kPackBlock * r + 16 * half) : _mm512_setzero_ps();
  }
}

template <int R>
KESTREL_INLINE void StoreHalf(const TileArgs& a, int half, const __m512 (&acc)[R]) {
  const __mmask16 mask = OutputMask(a.outputs - 16 * half);
  KESTREL_UNROLL for (int r = 0; r < R; ++r) _mm512_mask_storeu_ps(a.y[r] + 16 * half, mask, acc[r]);
}

template <class X, int R>
KESTREL_TARGET void Bf16Tile(const TileArgs& a) {
  const X x(a);
  __m512 acc0[R];
  __m512 acc1[R];
  LoadHalf(a, 0, acc0);
  LoadHalf(a, 1, acc1);
  for (int64_t pair = a.k_begin / 2; pair < a.k_end / 2; ++pair) {
    const std::byte* w = a.block + pair * kWordLine;
    if constexpr (R <= kDirectRows) {
      KESTREL_PREFETCH(w + kPrefetchBytes);
      KESTREL_PREFETCH(w + kPrefetchBytes + 64);
    }
    const __m512bh w0 = (__m512bh)_mm512_loadu_ps(w);
    const __m512bh w1 = (__m512bh)_mm512_loadu_ps(w + 64);
    KESTREL_UNROLL for (int r = 0; r < R; ++r) {
      const __m512bh xp = (__m512bh)_mm512_set1_ps(*x.At(r, pair));
      acc0[r] = _mm512_dpbf16_ps(acc0[r], w0, xp);
      acc1[r] = _mm512_dpbf16_ps(acc1[r], w1, xp);
    }
  }
  StoreHalf(a, 0, acc0);
  StoreHalf(a, 1, acc1);
}

// The 16 values of e2m1 as bfloat16, twice: VPERMW takes five index bits, and the fifth is the next nibble's lowest.
KESTREL_INLINE __m512i E2m1Table() {
  const __m256i t = _mm256_setr_epi16(
      0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, static_cast<short>(0x8000),
      static_cast<short>(0xbf00), static_cast<short>(0xbf80), static_cast<short>(0xbfc0), static_cast<short>(0xc000),
      static_cast<short>(0xc040), static_cast<short>(0xc080), static_cast<short>(0xc0c0));
  return _mm512_broadcast_i64x4(t);
}

// 16 e8m0 bytes as float32; the byte 0 is 2^-127, the denormal 0x00400000.
KESTREL_INLINE __m512 Scales(const std::byte* p) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_slli_epi32(bytes, 23), _mm512_set1_epi32(0x00400000)));
}

template <int kShift, class X, int R>
KESTREL_INLINE void Mxfp4Pair(__m512i words0, __m512i words1, __m512i table, const X& x, int64_t pair,
                              __m512 (&sum0)[R], __m512 (&sum1)[R]) {
  const __m512bh w0 = (__m512bh)_mm512_permutexvar_epi16(kShift ? _mm512_srli_epi16(words0, kShift) : words0, table);
  const __m512bh w1 = (__m512bh)_mm512_permutexvar_epi16(kShift ? _mm512_srli_epi16(words1, kShift) : words1, table);
  KESTREL_UNROLL for (int r = 0; r < R; ++r) DotPair(w0, w1, x.At(r, pair), sum0[r], sum1[r]);
}

// Four pairs of k, both halves of the block.
template <class X, int R>
KESTREL_INLINE void Mxfp4Line(const std::byte* w, __m512i table, const X& x, int64_t pair, __m512 (&sum0)[R],
                              __m512 (&sum1)[R]) {
  if constexpr (R <= kDirectRows) {
    KESTREL_PREFETCH(w + kPrefetchBytes);
    KESTREL_PREFETCH(w + kPrefetchBytes + 64);
  }
  __m512i words0 = _mm512_loadu_si512(w);
  __m512i words1 = _mm512_loadu_si512(w + 64);
  asm("" : "+v"(words0), "+v"(words1));  // else GCC loads each line four times
  Mxfp4Pair<0>(words0, words1, table, x, pair, sum0, sum1);
  Mxfp4Pair<4>(words0, words1, table, x, pair + 1, sum0, sum1);
  Mxfp4Pair<8>(words0, words1, table, x, pair + 2, sum0, sum1);
  Mxfp4Pair<12>(words0, words1, table, x, pair + 3, sum0, sum1);
}

template <int R>
KESTREL_INLINE void Clear(__m512 (&sum)[R]) {
  KESTREL_UNROLL for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_ps();
}

template <int R>
KESTREL_INLINE void AddScaled(const std::byte* scales, const __m512 (&sum)[R], __m512 (&total)[R]) {
  const __m512 scale = Scales(scales);
  KESTREL_UNROLL for (int r = 0; r < R; ++r) total[r] = _mm512_fmadd_ps(sum[r], scale, total[r]);
}

// One group of 32 k: its sums, then scaled into the totals.
template <class X, int R>
KESTREL_INLINE void Mxfp4Group(const std::byte* block, int64_t group, __m512i table, const X& x, __m512 (&total0)[R],
                               __m512 (&total1)[R]) {
  __m512 sum0[R];
  __m512 sum1[R];
  Clear(sum0);
  Clear(sum1);
  const std::byte* w = block + Mxfp4CodesAt(group);
  const int64_t pair = group * (kMxfp4Group / 2);
  if constexpr (R <= 2) {
    KESTREL_UNROLL for (int line = 0; line < 4; ++line) {
      Mxfp4Line(w + line * kWordLine, table, x, pair + 4 * line, sum0, sum1);
    }
  } else {
    for (int line = 0; line < 4; ++line) {
      Mxfp4Line(w + line * kWordLine, table, x, pair + 4 * line, sum0, sum1);
    }
  }
  const std::byte* scales = block + Mxfp4ScalesAt(group);
  AddScaled(scales, sum0, total0);
  AddScaled(scales + 16, sum1, total1);
}

// The 2 R group sums are in registers; the totals are too for few rows, else in L1: they are touched once in 32 k.
template <class X, int R>
KESTREL_TARGET void Mxfp4Tile(const TileArgs& a) {
  const X x(a);
  const __m512i table = E2m1Table();
  __m512 total0[R];
  __m512 total1[R];
  LoadHalf(a, 0, total0);
  LoadHalf(a, 1, total1);
  for (int64_t group = a.k_begin / kMxfp4Group; group < a.k_end / kMxfp4Group; ++group) {
    if constexpr (R > kTotalsInRegisters) asm volatile("" : : "r"(total0), "r"(total1) : "memory");
    Mxfp4Group(a.block, group, table, x, total0, total1);
  }
  StoreHalf(a, 0, total0);
  StoreHalf(a, 1, total1);
}

template <int R>
void FillRows(TileTable& t) {
  constexpr auto b16 = static_cast<int>(WeightType::kBf16);
  constexpr auto fp4 = static_cast<int>(WeightType::kMxfp4);
  constexpr auto rows = static_cast<int>(XKind::kRowsBf16);
  constexpr auto panel = static_cast<int>(XKind::kPanelBf16);
  t.tile[b16][panel][R - 1] = Bf16Tile<Panel<R>, R>;
  t.tile[fp4][panel][R - 1] = Mxfp4Tile<Panel<R>, R>;
  if constexpr (R <= kDirectRows) {
    t.tile[b16][rows][R - 1] = Bf16Tile<Rows<R>, R>;
    t.tile[fp4][rows][R - 1] = Mxfp4Tile<Rows<R>, R>;
  }
}

template <int... kIndex>
TileTable MakeTable(std::integer_sequence<int, kIndex...>) {
  TileTable t = Avx512Tiles();  // float32 products are the same there
  t.bf16_panels = true;
  (FillRows<kIndex + 1>(t), ...);
  return t;
}

}  // namespace

const TileTable& Avx512Bf16Tiles() {
  static const TileTable table = MakeTable(std::make_integer_sequence<int, kMaxTileRows>());
  return table;
}

}  // namespace kestrel::matmul
#endif
