// Inner loops of latent attention on bfloat16 pairs with VDPBF16PS: two products and a float32 sum a lane each cycle,
// twice the rate of float32.
#include "kestrel/kernels/simd/mla_ops.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "kestrel/base/float_types.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#endif

namespace kestrel {
namespace {

template <int kGroups>
void Tile(const uint32_t* a, int64_t a_row, int64_t a_unit, const uint32_t* b, int64_t units, const float* factor,
          float* c) {
  constexpr int64_t kLd = kGroups * kMlaLanes;
  __m512 sums[kMlaRowBlock][kGroups];
#pragma GCC unroll 8
  for (int r = 0; r < kMlaRowBlock; ++r) {
#pragma GCC unroll 3
    for (int g = 0; g < kGroups; ++g) sums[r][g] = _mm512_setzero_ps();
  }
  for (int64_t u = 0; u < units; ++u) {
    __m512bh bv[kGroups];
#pragma GCC unroll 3
    for (int g = 0; g < kGroups; ++g) bv[g] = (__m512bh)_mm512_load_si512(b + u * kLd + g * kMlaLanes);
    const uint32_t* au = a + u * a_unit;
#pragma GCC unroll 8
    for (int r = 0; r < kMlaRowBlock; ++r) {
      const __m512bh av = (__m512bh)_mm512_set1_epi32(static_cast<int>(au[r * a_row]));
#pragma GCC unroll 3
      for (int g = 0; g < kGroups; ++g) sums[r][g] = _mm512_dpbf16_ps(sums[r][g], av, bv[g]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kMlaRowBlock; ++r) {
#pragma GCC unroll 3
    for (int g = 0; g < kGroups; ++g) {
      float* at = c + r * kLd + g * kMlaLanes;
      __m512 sum = sums[r][g];
      if (factor) sum = _mm512_fmadd_ps(_mm512_load_ps(factor + g * kMlaLanes), _mm512_load_ps(at), sum);
      _mm512_store_ps(at, sum);
    }
  }
}

void Panel(const uint32_t* a, int64_t a_row, int64_t a_unit, const uint32_t* b, int64_t rows, int64_t units,
           int64_t groups, const float* factor, float* c) {
  const auto tile = groups == 3 ? Tile<3> : groups == 2 ? Tile<2> : Tile<1>;
  for (int64_t r = 0; r < rows; r += kMlaRowBlock) {
    tile(a + r * a_row, a_row, a_unit, b, units, factor, c + r * groups * kMlaLanes);
  }
}

uint32_t Bits(uint16_t x) { return x; }
uint32_t Bits(float x) { return ToBf16(x).bits; }

template <class T>
void Pack(const T* src, int64_t stride, int64_t count, int64_t units, int64_t groups, uint32_t* dst) {
  const int64_t lanes = groups * kMlaLanes;
  for (int64_t u0 = 0; u0 < units; u0 += 16) {  // 16 units at a time: the lines written stay in L1
    const int64_t end = units < u0 + 16 ? units : u0 + 16;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const T* row = src + lane * stride;
      for (int64_t u = u0; u < end; ++u) {
        dst[u * lanes + lane] = lane < count ? Bits(row[2 * u]) | Bits(row[2 * u + 1]) << 16 : 0;
      }
    }
  }
}

template <class T>
void Units(const T* src, int64_t n, uint32_t* dst) {
  for (int64_t i = 0; i < n / 2; ++i) dst[i] = Bits(src[2 * i]) | Bits(src[2 * i + 1]) << 16;
}

template <class T>
void Across(const T* src, int64_t stride, int64_t keys, int64_t n, uint32_t* dst, int64_t dst_stride) {
  for (int64_t u = 0; u < 32; ++u) {
    uint32_t* out = dst + u * dst_stride;
    const T* even = src + 2 * u * stride;
    const T* odd = even + stride;
    if (2 * u + 1 < keys) {
      for (int64_t c = 0; c < n; ++c) out[c] = Bits(even[c]) | Bits(odd[c]) << 16;
    } else if (2 * u < keys) {
      for (int64_t c = 0; c < n; ++c) out[c] = Bits(even[c]);
    } else {
      std::memset(out, 0, static_cast<size_t>(n) * 4);
    }
  }
}

}  // namespace

const MlaOps* MlaOpsBf16() {
  static constexpr MlaOps kOps = {
      2, Panel, Pack<float>, Pack<uint16_t>, Units<float>, Units<uint16_t>, Across<float>, Across<uint16_t>};
  return &kOps;
}

}  // namespace kestrel

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else
namespace kestrel {
const MlaOps* MlaOpsBf16() { return nullptr; }
}  // namespace kestrel
#endif
