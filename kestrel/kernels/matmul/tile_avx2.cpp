// Tiles for AVX2 and FMA: two 8-lane registers to a vector.
#include "kestrel/kernels/matmul/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <utility>

#include "kestrel/kernels/matmul/matmul.h"

#define KESTREL_TARGET __attribute__((target("avx2,fma")))
#define KESTREL_INLINE KESTREL_TARGET __attribute__((always_inline)) inline
#define KESTREL_UNROLL _Pragma("GCC unroll 16")
#define KESTREL_PREFETCH(p) _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0)

namespace kestrel::matmul {
namespace {

constexpr int64_t kPrefetchBytes = 4096;
constexpr int kTwoHalvesRows = 2;  // 8 accumulators and 8 registers of weights

struct V {
  struct Words {
    __m256i lo, hi;
  };
  __m256 lo, hi;

  KESTREL_INLINE static V Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  KESTREL_INLINE static V Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  KESTREL_INLINE static void Store(float* p, V a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  KESTREL_INLINE static V Broadcast(const float* p) {
    const __m256 x = _mm256_broadcast_ss(p);
    return {x, x};
  }
  KESTREL_INLINE static V BroadcastLow(const uint32_t* p) {
    const __m256 x = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_set1_epi32(static_cast<int>(*p)), 16));
    return {x, x};
  }
  KESTREL_INLINE static V BroadcastHigh(const uint32_t* p) {
    const __m256 x = _mm256_set1_ps(std::bit_cast<float>(*p & 0xffff0000u));
    return {x, x};
  }
  KESTREL_INLINE static V MulAdd(V a, V b, V c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  KESTREL_INLINE static Words LoadWords(const std::byte* p) {
    const auto* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
  }
  KESTREL_INLINE static __m256 High(__m256i w) {
    return _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  KESTREL_INLINE static V Low(Words w) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(w.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(w.hi, 16))};
  }
  KESTREL_INLINE static V High(Words w) { return {High(w.lo), High(w.hi)}; }
  // VPERMPS looks at three index bits: the magnitude; the sign is shifted to its place.
  template <int kShift>
  KESTREL_INLINE static __m256 E2m1(__m256i w) {
    const __m256 table = _mm256_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6);
    const __m256 magnitude = _mm256_permutevar8x32_ps(table, kShift ? _mm256_srli_epi32(w, kShift) : w);
    const __m256i sign = kShift == 28 ? w : _mm256_slli_epi32(w, 28 - kShift);
    return _mm256_xor_ps(magnitude, _mm256_and_ps(_mm256_castsi256_ps(sign), _mm256_set1_ps(-0.f)));
  }
  template <int kShift>
  KESTREL_INLINE static V E2m1(Words w) {
    return {E2m1<kShift>(w.lo), E2m1<kShift>(w.hi)};
  }
  KESTREL_INLINE static __m256 Scales8(const std::byte* p) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32(bytes, 23), _mm256_set1_epi32(0x00400000)));
  }
  KESTREL_INLINE static V Scales(const std::byte* p) { return {Scales8(p), Scales8(p + 8)}; }
};

#include "kestrel/kernels/matmul/fma_tile.inl.h"

}  // namespace

const TileTable& Avx2Tiles() {
  static const TileTable table = MakeTable(std::make_integer_sequence<int, 6>());
  return table;
}

}  // namespace kestrel::matmul
#endif
