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
constexpr int64_t kWordLine = kPackBlock * 4;

template <int R>
struct Rows {
  const float* row[R];
  KESTREL_INLINE explicit Rows(const TileArgs& a) {
    KESTREL_UNROLL for (int r = 0; r < R; ++r) row[r] = static_cast<const float*>(a.x[r]);
  }
  // The pair as one 32-bit element in all lanes.
  KESTREL_INLINE __m512bh Pair(int r, int64_t pair) const { return (__m512bh)_mm512_set1_ps(row[r][pair]); }
};

template <int R>
struct Panel {
  const float* panel;
  KESTREL_INLINE explicit Panel(const TileArgs& a) : panel(static_cast<const float*>(a.panel)) {}
  KESTREL_INLINE __m512bh Pair(int r, int64_t pair) const { return (__m512bh)_mm512_set1_ps(panel[pair * R + r]); }
};

KESTREL_INLINE __mmask16 OutputMask(int64_t outputs) {
  return outputs >= 16 ? 0xffff : outputs <= 0 ? 0 : static_cast<__mmask16>((1u << outputs) - 1);
}

template <int R>
KESTREL_INLINE void LoadHalf(const TileArgs& a, int half, __m512 (&acc)[R]) {
  const __mmask16 mask = OutputMask(a.outputs - 16 * half);
  KESTREL_UNROLL for (int r = 0; r < R; ++r) {
    acc[r] = a.accumulate ? _mm512_maskz_loadu_ps(mask, a.y[r] + 16 * half) : _mm512_setzero_ps();
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
      const __m512bh xp = x.Pair(r, pair);
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
KESTREL_INLINE void Mxfp4Pair(__m512i words, __m512i table, const X& x, int64_t pair, __m512 (&sum)[R]) {
  const __m512bh w = (__m512bh)_mm512_permutexvar_epi16(kShift ? _mm512_srli_epi16(words, kShift) : words, table);
  KESTREL_UNROLL for (int r = 0; r < R; ++r) sum[r] = _mm512_dpbf16_ps(sum[r], w, x.Pair(r, pair));
}

template <class X, int R>
KESTREL_INLINE void Mxfp4Line(const std::byte* w, __m512i table, const X& x, int64_t pair, __m512 (&sum)[R]) {
  if constexpr (R <= kDirectRows) KESTREL_PREFETCH(w + kPrefetchBytes);
  const __m512i words = _mm512_loadu_si512(w);
  Mxfp4Pair<0>(words, table, x, pair, sum);
  Mxfp4Pair<4>(words, table, x, pair + 1, sum);
  Mxfp4Pair<8>(words, table, x, pair + 2, sum);
  Mxfp4Pair<12>(words, table, x, pair + 3, sum);
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

// Few rows: both halves of the block in one pass over the weights, which come from memory.
template <class X, int R>
KESTREL_TARGET void Mxfp4TileStream(const TileArgs& a) {
  const X x(a);
  const __m512i table = E2m1Table();
  const std::byte* scales = a.block + a.cols / 8 * kWordLine;
  __m512 total0[R];
  __m512 total1[R];
  LoadHalf(a, 0, total0);
  LoadHalf(a, 1, total1);
  for (int64_t group = a.k_begin / kMxfp4Group; group < a.k_end / kMxfp4Group; ++group) {
    const std::byte* w = a.block + group * 4 * kWordLine;
    __m512 sum0[R];
    __m512 sum1[R];
    Clear(sum0);
    Clear(sum1);
    if constexpr (R <= 3) {  // side by side: two chains a row
      KESTREL_UNROLL for (int line = 0; line < 4; ++line) {
        Mxfp4Line(w + line * kWordLine, table, x, group * 16 + 4 * line, sum0);
        Mxfp4Line(w + line * kWordLine + 64, table, x, group * 16 + 4 * line, sum1);
      }
      AddScaled(scales + group * kPackBlock, sum0, total0);
      AddScaled(scales + group * kPackBlock + 16, sum1, total1);
    } else {  // one after the other: 2 R totals and R sums in registers
      for (int line = 0; line < 4; ++line) {
        Mxfp4Line(w + line * kWordLine, table, x, group * 16 + 4 * line, sum0);
      }
      AddScaled(scales + group * kPackBlock, sum0, total0);
      for (int line = 0; line < 4; ++line) {
        Mxfp4Line(w + line * kWordLine + 64, table, x, group * 16 + 4 * line, sum1);
      }
      AddScaled(scales + group * kPackBlock + 16, sum1, total1);
    }
  }
  StoreHalf(a, 0, total0);
  StoreHalf(a, 1, total1);
}

// Many rows: one half after the other, so that R sums and R totals fit; the weights of a k range stay in L1.
template <class X, int R>
KESTREL_TARGET void Mxfp4TileHalves(const TileArgs& a) {
  const X x(a);
  const __m512i table = E2m1Table();
  const std::byte* scales = a.block + a.cols / 8 * kWordLine;
  for (int half = 0; half < 2; ++half) {
    __m512 total[R];
    LoadHalf(a, half, total);
    for (int64_t group = a.k_begin / kMxfp4Group; group < a.k_end / kMxfp4Group; ++group) {
      const std::byte* w = a.block + group * 4 * kWordLine + 64 * half;
      __m512 sum[R];
      Clear(sum);
      for (int line = 0; line < 4; ++line) Mxfp4Line(w + line * kWordLine, table, x, group * 16 + 4 * line, sum);
      AddScaled(scales + group * kPackBlock + 16 * half, sum, total);
    }
    StoreHalf(a, half, total);
  }
}

template <class X, int R>
constexpr TileFn Mxfp4Tile() {
  if constexpr (R <= kDirectRows) {
    return Mxfp4TileStream<X, R>;
  } else {
    return Mxfp4TileHalves<X, R>;
  }
}

template <int R>
void FillRows(TileTable& t) {
  constexpr auto b16 = static_cast<int>(WeightType::kBf16);
  constexpr auto fp4 = static_cast<int>(WeightType::kMxfp4);
  constexpr auto rows = static_cast<int>(XKind::kRowsBf16);
  constexpr auto panel = static_cast<int>(XKind::kPanelBf16);
  t.tile[b16][panel][R - 1] = Bf16Tile<Panel<R>, R>;
  t.tile[fp4][panel][R - 1] = Mxfp4Tile<Panel<R>, R>();
  if constexpr (R <= kDirectRows) {
    t.tile[b16][rows][R - 1] = Bf16Tile<Rows<R>, R>;
    t.tile[fp4][rows][R - 1] = Mxfp4Tile<Rows<R>, R>();
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
