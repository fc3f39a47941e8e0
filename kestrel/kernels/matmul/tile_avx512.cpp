// Tiles for AVX-512 without BF16 instructions, and for float32 products with them.
#include "kestrel/kernels/matmul/tile.h"

#if defined(__x86_64__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC bug 105593, in its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <utility>

#include "kestrel/kernels/matmul/matmul.h"

#define KESTREL_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define KESTREL_INLINE KESTREL_TARGET __attribute__((always_inline)) inline
#define KESTREL_UNROLL _Pragma("GCC unroll 16")
#define KESTREL_PREFETCH(p) _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0)

namespace kestrel::matmul {
namespace {

constexpr int64_t kPrefetchBytes = 4096;
constexpr int kTwoHalvesRows = 12;  // 24 accumulators of 32 registers

struct V {
  using Words = __m512i;
  __m512 v;

  KESTREL_INLINE static V Zero() { return {_mm512_setzero_ps()}; }
  KESTREL_INLINE static V Load(const float* p) { return {_mm512_loadu_ps(p)}; }
  KESTREL_INLINE static void Store(float* p, V a) { _mm512_storeu_ps(p, a.v); }
  KESTREL_INLINE static V Broadcast(const float* p) { return {_mm512_set1_ps(*p)}; }
  KESTREL_INLINE static Words Splat(const uint32_t* p) { return _mm512_set1_epi32(static_cast<int>(*p)); }
  KESTREL_INLINE static V BroadcastLow(const uint32_t* p) { return Low(Splat(p)); }
  KESTREL_INLINE static V BroadcastHigh(const uint32_t* p) { return High(Splat(p)); }
  KESTREL_INLINE static V MulAdd(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  KESTREL_INLINE static Words LoadWords(const std::byte* p) { return _mm512_loadu_si512(p); }
  KESTREL_INLINE static V Low(Words w) { return {_mm512_castsi512_ps(_mm512_slli_epi32(w, 16))}; }
  KESTREL_INLINE static V High(Words w) {
    return {_mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  // VPERMPS looks at four index bits only, so the neighbours of the nibble do no harm.
  template <int kShift>
  KESTREL_INLINE static V E2m1(Words w) {
    const __m512 table = _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6);
    return {_mm512_permutexvar_ps(kShift ? _mm512_srli_epi32(w, kShift) : w, table)};
  }
  KESTREL_INLINE static V Scales(const std::byte* p) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm512_castsi512_ps(_mm512_max_epu32(_mm512_slli_epi32(bytes, 23), _mm512_set1_epi32(0x00400000)))};
  }
};

#include "kestrel/kernels/matmul/fma_tile.inl.h"

}  // namespace

const TileTable& Avx512Tiles() {
  static const TileTable table = MakeTable(std::make_integer_sequence<int, kMaxTileRows>());
  return table;
}

}  // namespace kestrel::matmul
#endif
