// Tiles with VDPBF16PS: in each lane (an output) it adds the products of the pair (k, k+1) to a float32.
#include "kestrel/kernels/matmul/tile.h"

#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC bug 105593, in its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
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

template <int R>
void FillRows(TileTable& t) {
  constexpr auto b16 = static_cast<int>(WeightType::kBf16);
  constexpr auto rows = static_cast<int>(XKind::kRowsBf16);
  constexpr auto panel = static_cast<int>(XKind::kPanelBf16);
  t.tile[b16][panel][R - 1] = Bf16Tile<Panel<R>, R>;
  if constexpr (R <= kDirectRows) {
    t.tile[b16][rows][R - 1] = Bf16Tile<Rows<R>, R>;
  }
}

template <int... kIndex>
TileTable MakeTable(std::integer_sequence<int, kIndex...>) {
  TileTable t = Avx512Tiles();  // all but bfloat16 products are the same there
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
