// Tiles for AVX2 and FMA: two 8-lane registers to a vector.
#include "kestrel/kernels/matmul/tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <limits>
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
constexpr int kInt16Side = 2;      // 12 sums of 16 registers at 6 rows
constexpr int kInt16RowsSideRows = 2, kInt16TotalsInRegisters = 2;
constexpr int kExactTwoSidesRows = 2;  // a vector of 8 doubles is two registers

struct V {
  static constexpr int kLanes = 16;
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
};

struct I {
  static constexpr int kLanes = 8;
  using Codes = __m256i;
  using Pair = __m256i;
  using Sum = __m256i;
  using Float = __m256;

  KESTREL_INLINE static Sum Zero() { return _mm256_setzero_si256(); }
  KESTREL_INLINE static Float FloatZero() { return _mm256_setzero_ps(); }
  KESTREL_INLINE static Float Load(const float* p) { return _mm256_loadu_ps(p); }
  KESTREL_INLINE static void Store(float* p, Float v) { _mm256_storeu_ps(p, v); }
  KESTREL_INLINE static Codes LoadCodes(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  KESTREL_INLINE static Pair LoadPair(const uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  KESTREL_INLINE static void StorePair(uint32_t* p, Pair v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  // VPSHUFB makes bytes of two nibbles of each half at once, of pairs 0 and 2 or 1 and 3; the shift extends the sign.
  template <int kPair>
  KESTREL_INLINE static Pair FromCodes(Codes codes) {
    const __m256i values =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m256i nibbles = _mm256_and_si256(kPair % 2 ? _mm256_srli_epi16(codes, 4) : codes, _mm256_set1_epi8(15));
    const __m256i bytes = _mm256_shuffle_epi8(values, nibbles);
    return _mm256_srai_epi16(kPair < 2 ? _mm256_slli_epi16(bytes, 8) : bytes, 8);
  }
  KESTREL_INLINE static void Dot(Pair w, const uint32_t* x, Sum& sum) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w, _mm256_set1_epi32(static_cast<int>(*x))));
  }
  // 8 e8m0 bytes as float32; the byte 0 is 2^-127, the denormal 0x00400000.
  KESTREL_INLINE static Float Scales(const std::byte* p) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32(bytes, 23), _mm256_set1_epi32(0x00400000)));
  }
  KESTREL_INLINE static Float AddScaled(Sum sum, float x_scale, Float scale, Float total) {
    return _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(x_scale)), scale, total);
  }
};

struct D {
  static constexpr int kLanes = 8;
  __m256d lo, hi;

  KESTREL_INLINE static D Widen(__m256 v) {
    return {_mm256_cvtps_pd(_mm256_castps256_ps128(v)), _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))};
  }
  KESTREL_INLINE static D Zero() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  KESTREL_INLINE static D Load(const float* p) {
    return {_mm256_cvtps_pd(_mm_loadu_ps(p)), _mm256_cvtps_pd(_mm_loadu_ps(p + 4))};
  }
  KESTREL_INLINE static D Low(const std::byte* p) {
    return Widen(_mm256_castsi256_ps(_mm256_slli_epi32(I::LoadCodes(p), 16)));
  }
  KESTREL_INLINE static D High(const std::byte* p) { return Widen(V::High(I::LoadCodes(p))); }
  // VPERMPS looks at three index bits: the magnitude; the sign is shifted to its place.
  KESTREL_INLINE static D E2m1(const std::byte* p, int shift) {
    const __m256i code = _mm256_srli_epi32(I::LoadCodes(p), shift);
    const __m256 magnitude = _mm256_permutevar8x32_ps(_mm256_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6), code);
    const __m256 sign = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));
    return Widen(_mm256_xor_ps(magnitude, _mm256_and_ps(sign, _mm256_set1_ps(-0.f))));
  }
  KESTREL_INLINE static __m256d Scales4(__m128i bytes) {
    const __m256i exponent = _mm256_add_epi64(_mm256_cvtepu8_epi64(bytes), _mm256_set1_epi64x(1023 - 127));
    return _mm256_castsi256_pd(_mm256_slli_epi64(exponent, 52));
  }
  KESTREL_INLINE static D Scales(const std::byte* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return {Scales4(bytes), Scales4(_mm_srli_si128(bytes, 4))};
  }
  KESTREL_INLINE static D Broadcast(const float* p) {
    const __m256d x = _mm256_cvtps_pd(_mm_broadcast_ss(p));
    return {x, x};
  }
  KESTREL_INLINE static D Mul(D a, D b) { return {_mm256_mul_pd(a.lo, b.lo), _mm256_mul_pd(a.hi, b.hi)}; }
  KESTREL_INLINE static D MulAdd(D a, D b, D c) {
    return {_mm256_fmadd_pd(a.lo, b.lo, c.lo), _mm256_fmadd_pd(a.hi, b.hi, c.hi)};
  }
  KESTREL_INLINE static void Store(float* p, D a) {
    _mm_storeu_ps(p, _mm256_cvtpd_ps(a.lo));
    _mm_storeu_ps(p + 4, _mm256_cvtpd_ps(a.hi));
  }
};

#include "kestrel/kernels/matmul/exact_tile.inl.h"
#include "kestrel/kernels/matmul/fma_tile.inl.h"
#include "kestrel/kernels/matmul/int16_tile.inl.h"
#include "kestrel/kernels/matmul/quantize.inl.h"
#include "kestrel/kernels/matmul/table.inl.h"

}  // namespace

const TileTable& Avx2Tiles() {
  static const TileTable table = MakeTable(std::make_integer_sequence<int, 6>());
  return table;
}

}  // namespace kestrel::matmul
#endif
