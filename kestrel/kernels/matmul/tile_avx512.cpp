// Tiles for AVX-512 with VNNI; VDPBF16PS is in tile_avx512bf16.cpp.
#include "kestrel/kernels/matmul/tile.h"

#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC bug 105593, in its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "kestrel/kernels/matmul/matmul.h"

#define KESTREL_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define KESTREL_INLINE KESTREL_TARGET __attribute__((always_inline)) inline
#define KESTREL_UNROLL _Pragma("GCC unroll 16")
#define KESTREL_PREFETCH(p) _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1)

namespace kestrel::matmul {
namespace {

constexpr int64_t kPrefetchBytes = 4096;  // into L2; into L1 it costs 3 to 6 % of the read rate
constexpr int kTwoHalvesRows = 12;        // 24 accumulators of 32 registers
constexpr int kInt16Side = 2, kInt16RowsSideRows = 8;
constexpr int kInt16TotalsInRegisters = 8;  // beside as many sums, 8 pairs and the table
constexpr int kExactTwoSidesRows = 12;

struct V {
  static constexpr int kLanes = 16;
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
};

struct I {
  static constexpr int kLanes = 16;
  using Codes = __m512i;
  using Pair = __m512i;
  using Sum = __m512i;
  using Float = __m512;

  KESTREL_INLINE static Sum Zero() { return _mm512_setzero_si512(); }
  KESTREL_INLINE static Float FloatZero() { return _mm512_setzero_ps(); }
  KESTREL_INLINE static Float Load(const float* p) { return _mm512_loadu_ps(p); }
  KESTREL_INLINE static void Store(float* p, Float v) { _mm512_storeu_ps(p, v); }
  KESTREL_INLINE static Codes LoadCodes(const std::byte* p) {
    Codes codes = _mm512_loadu_si512(p);
    asm("" : "+v"(codes));  // else GCC loads each line four times
    return codes;
  }
  KESTREL_INLINE static Pair LoadPair(const uint32_t* p) { return _mm512_loadu_si512(p); }
  KESTREL_INLINE static void StorePair(uint32_t* p, Pair v) { _mm512_storeu_si512(p, v); }
  // The 16 values of e2m1 times two, twice: VPERMW takes five index bits, and the fifth is the next nibble's lowest.
  template <int kPair>
  KESTREL_INLINE static Pair FromCodes(Codes codes) {
    const __m256i values = _mm256_setr_epi16(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    return _mm512_permutexvar_epi16(kPair ? _mm512_srli_epi16(codes, 4 * kPair) : codes,
                                    _mm512_broadcast_i64x4(values));
  }
  KESTREL_INLINE static void Dot(Pair w, const uint32_t* x, Sum& sum) {
    sum = _mm512_dpwssd_epi32(sum, w, _mm512_set1_epi32(static_cast<int>(*x)));
  }
  // 16 e8m0 bytes as float32; the byte 0 is 2^-127, the denormal 0x00400000.
  KESTREL_INLINE static Float Scales(const std::byte* p) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_slli_epi32(bytes, 23), _mm512_set1_epi32(0x00400000)));
  }
  KESTREL_INLINE static Float AddScaled(Sum sum, float x_scale, Float scale, Float total) {
    return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(x_scale)), scale, total);
  }
};

struct D {
  static constexpr int kLanes = 8;
  __m512d v;

  KESTREL_INLINE static D Zero() { return {_mm512_setzero_pd()}; }
  KESTREL_INLINE static D Load(const float* p) { return {_mm512_cvtps_pd(_mm256_loadu_ps(p))}; }
  KESTREL_INLINE static __m256i Words(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  KESTREL_INLINE static D Low(const std::byte* p) {
    return {_mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(Words(p), 16)))};
  }
  KESTREL_INLINE static D High(const std::byte* p) {
    const __m256i high = _mm256_and_si256(Words(p), _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
    return {_mm512_cvtps_pd(_mm256_castsi256_ps(high))};
  }
  // VPERMT2PD looks at four index bits only, so the neighbours of the nibble do no harm.
  KESTREL_INLINE static D E2m1(const std::byte* p, int shift) {
    const __m512d plus = _mm512_setr_pd(0, .5, 1, 1.5, 2, 3, 4, 6);
    const __m512d minus = _mm512_setr_pd(-0., -.5, -1, -1.5, -2, -3, -4, -6);
    const __m512i index = _mm512_cvtepu32_epi64(_mm256_srli_epi32(Words(p), shift));
    return {_mm512_permutex2var_pd(plus, index, minus)};
  }
  KESTREL_INLINE static D Scales(const std::byte* p) {
    const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return {_mm512_castsi512_pd(_mm512_slli_epi64(_mm512_add_epi64(bytes, _mm512_set1_epi64(1023 - 127)), 52))};
  }
  KESTREL_INLINE static D Broadcast(const float* p) { return {_mm512_cvtps_pd(_mm256_broadcast_ss(p))}; }
  KESTREL_INLINE static D Mul(D a, D b) { return {_mm512_mul_pd(a.v, b.v)}; }
  KESTREL_INLINE static D MulAdd(D a, D b, D c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }
  KESTREL_INLINE static void Store(float* p, D a) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(a.v)); }
};

#include "kestrel/kernels/matmul/exact_tile.inl.h"
#include "kestrel/kernels/matmul/fma_tile.inl.h"
#include "kestrel/kernels/matmul/int16_tile.inl.h"
#include "kestrel/kernels/matmul/quantize.inl.h"
#include "kestrel/kernels/matmul/split_tile.inl.h"
#include "kestrel/kernels/matmul/table.inl.h"

}  // namespace

const TileTable& Avx512Tiles() {
  static const TileTable table = [] {
    TileTable t = MakeTable(std::make_integer_sequence<int, kMaxTileRows>());
    if (__builtin_cpu_supports("avx512vbmi")) FillSplitRows(t, std::make_integer_sequence<int, kSplitRows>());
    return t;
  }();
  return table;
}

}  // namespace kestrel::matmul
#endif
