// Inner loops of latent attention on bfloat16 pairs with VDPBF16PS: two products and a float32 sum a lane each cycle,
// twice the rate of float32.
#include "kestrel/kernels/simd/mla_ops.h"

#if defined(__x86_64__)
#if !defined(__clang__)
// g++ 12 warns about the deliberately undefined registers in its own intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
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
           int64_t groups, const float* factor, float* c, const MlaPrefetch& ahead) {
  const auto tile = groups == 3 ? Tile<3> : groups == 2 ? Tile<2> : Tile<1>;
  for (int64_t r = 0; r < rows; r += kMlaRowBlock) {
    ahead.Share(r / kMlaRowBlock, rows / kMlaRowBlock);
    tile(a + r * a_row, a_row, a_unit, b, units, factor, c + r * groups * kMlaLanes);
  }
}

uint32_t Bits(uint16_t x) { return x; }
uint32_t Bits(float x) { return ToBf16(x).bits; }

// 16 units, the pairs of 32 neighbouring values. VCVTNEPS2BF16 rounds as ToBf16 does, but for denormals, which it makes
// zero as VDPBF16PS does in any case.
__m512i LoadUnits(const uint16_t* x) { return _mm512_loadu_si512(x); }
__m512i LoadUnits(const float* x) { return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x)); }
// 16 values, each in the lower half of its lane.
__m512i LoadWide(const uint16_t* x) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
__m512i LoadWide(const float* x) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x))); }

// Row i, column j becomes row j, column i; 32-bit elements.
void Transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // r[4q + c], 128-bit block b: rows 4q .. 4q+3 of column 4b + c.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x44),
                  high01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xee);
    t[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    t[8 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

template <class T>
void Pack(const T* src, int64_t stride, int64_t count, int64_t units, int64_t groups, uint32_t* dst) {
  const int64_t lanes = groups * kMlaLanes, whole = units / 16 * 16;
  for (int64_t lane0 = 0; lane0 < lanes; lane0 += kMlaLanes) {
    for (int64_t u0 = 0; u0 < whole; u0 += 16) {
      __m512i r[16];
      for (int64_t i = 0; i < 16; ++i) {
        r[i] = lane0 + i < count ? LoadUnits(src + (lane0 + i) * stride + 2 * u0) : _mm512_setzero_si512();
      }
      Transpose(r);
      for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(dst + (u0 + i) * lanes + lane0, r[i]);
    }
    for (int64_t lane = lane0; lane < lane0 + kMlaLanes; ++lane) {
      const T* row = src + lane * stride;
      for (int64_t u = whole; u < units; ++u) {
        dst[u * lanes + lane] = lane < count ? Bits(row[2 * u]) | Bits(row[2 * u + 1]) << 16 : 0;
      }
    }
  }
}

template <class T>
void Units(const T* src, int64_t n, uint32_t* dst) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) _mm512_storeu_si512(dst + i / 2, LoadUnits(src + i));
  for (; i < n; i += 2) dst[i / 2] = Bits(src[i]) | Bits(src[i + 1]) << 16;
}

template <class T>
void Across(const T* src, int64_t stride, int64_t keys, int64_t n, uint32_t* dst, int64_t dst_stride) {
  for (int64_t u = 0; u < 32; ++u) {
    uint32_t* out = dst + u * dst_stride;
    const T* even = src + 2 * u * stride;
    const T* odd = even + stride;
    int64_t c = 0;
    if (2 * u + 1 < keys) {
      for (; c + 16 <= n; c += 16) {
        _mm512_storeu_si512(out + c, _mm512_or_si512(LoadWide(even + c), _mm512_slli_epi32(LoadWide(odd + c), 16)));
      }
      for (; c < n; ++c) out[c] = Bits(even[c]) | Bits(odd[c]) << 16;
    } else if (2 * u < keys) {
      for (; c + 16 <= n; c += 16) _mm512_storeu_si512(out + c, LoadWide(even + c));
      for (; c < n; ++c) out[c] = Bits(even[c]);
    } else {
      std::memset(out, 0, static_cast<size_t>(n) * 4);
    }
  }
}

void Finish(const float* values, const float* sum, int64_t groups, int64_t count, int64_t channels, float* out,
            int64_t stride) {
  const int64_t lanes = groups * kMlaLanes, whole = channels / 16 * 16;
  for (int64_t lane0 = 0; lane0 < count; lane0 += kMlaLanes) {
    const int64_t end = count < lane0 + kMlaLanes ? count : lane0 + kMlaLanes;
    const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1), _mm512_load_ps(sum + lane0));
    for (int64_t c0 = 0; c0 < whole; c0 += 16) {
      __m512i r[16];
      for (int64_t i = 0; i < 16; ++i) {
        const __m512 x = _mm512_mul_ps(_mm512_load_ps(values + (c0 + i) * lanes + lane0), inverse);
        r[i] = _mm512_castps_si512(_mm512_add_ps(x, _mm512_setzero_ps()));
      }
      Transpose(r);
      for (int64_t lane = lane0; lane < end; ++lane) _mm512_storeu_si512(out + lane * stride + c0, r[lane - lane0]);
    }
    for (int64_t lane = lane0; lane < end; ++lane) {
      for (int64_t c = whole; c < channels; ++c)
        out[lane * stride + c] = values[c * lanes + lane] * (1 / sum[lane]) + 0.0f;
    }
  }
}

}  // namespace

const MlaOps* MlaOpsBf16() {
  static constexpr MlaOps kOps = {
      2, Panel, Pack<float>, Pack<uint16_t>, Units<float>, Units<uint16_t>, Across<float>, Across<uint16_t>, Finish};
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
