// Float32 inner loops of latent attention, compiled once for each target; mla_ops_bf16.cpp has the VDPBF16PS ones.
#include "kestrel/kernels/simd/mla_ops.h"

#include <bit>
#include <cstring>
#include <limits>

#include "kestrel/base/float_types.h"
#include "kestrel/kernels/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kestrel/kernels/simd/mla_ops.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kestrel/kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kestrel {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

// kRows x kVectors sums in registers. ldb and ldc are the panel's lanes.
template <int kRows, int kVectors>
HWY_INLINE void Tile(const float* a, int64_t a_row, int64_t a_unit, const float* b, int64_t ldb, int64_t units,
                     const float* factor, float* c) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  for (int64_t u = 0; u < units; ++u) {
    V bv[kVectors];
    for (int v = 0; v < kVectors; ++v) bv[v] = hn::Load(d, b + u * ldb + v * lanes);
    const float* au = a + u * a_unit;
    for (int r = 0; r < kRows; ++r) {
      const V av = hn::Set(d, au[r * a_row]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(av, bv[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* at = c + r * ldb + v * lanes;
      V sum = sums[r][v];
      if (factor) sum = hn::MulAdd(hn::Load(d, factor + v * lanes), hn::Load(d, at), sum);
      hn::Store(sum, d, at);
    }
  }
}

#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
// Highway 1.0.3 has no SSE2 and emulates vectors on a baseline x86, ten times slower than the compiler's own four
// floats. Two rows x 16 lanes: 8 sums of the 16 registers.
void PlainTile(const float* a, int64_t a_row, int64_t a_unit, const float* b, int64_t ldb, int64_t units,
               const float* factor, float* c) {
  using F4 = float __attribute__((vector_size(16)));
  const auto at = [](auto* p, int64_t lane) { return reinterpret_cast<const F4*>(p + lane); };
  F4 sums[2][4] = {};
  for (int64_t u = 0; u < units; ++u) {
    const float a0 = a[u * a_unit], a1 = a[a_row + u * a_unit];
    for (int v = 0; v < 4; ++v) {
      const F4 bv = *at(b, u * ldb + 4 * v);
      sums[0][v] += a0 * bv;
      sums[1][v] += a1 * bv;
    }
  }
  for (int r = 0; r < 2; ++r) {
    for (int v = 0; v < 4; ++v) {
      F4* to = reinterpret_cast<F4*>(c + r * ldb + 4 * v);
      *to = factor ? *at(factor, 4 * v) * *to + sums[r][v] : sums[r][v];
    }
  }
}
#endif

template <int kRows, int kVectors>
void Rows(const float* a, int64_t a_row, int64_t a_unit, const float* b, int64_t ldb, int64_t rows, int64_t units,
          const float* factor, float* c, const MlaPrefetch& ahead) {
  for (int64_t r = 0; r < rows; r += kRows) {
    ahead.Share(r / kRows, rows / kRows);
    Tile<kRows, kVectors>(a + r * a_row, a_row, a_unit, b, ldb, units, factor, c + r * ldb);
  }
}

void Panel(const uint32_t* a_units, int64_t a_row, int64_t a_unit, const uint32_t* b_units, int64_t rows, int64_t units,
           int64_t groups, const float* factor, float* c, const MlaPrefetch& ahead) {
  const float* a = reinterpret_cast<const float*>(a_units);
  const float* b = reinterpret_cast<const float*>(b_units);
  const int64_t ldb = groups * kMlaLanes;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if (groups == 3) return Rows<8, 3>(a, a_row, a_unit, b, ldb, rows, units, factor, c, ahead);
  if (groups == 2) return Rows<8, 2>(a, a_row, a_unit, b, ldb, rows, units, factor, c, ahead);
  Rows<8, 1>(a, a_row, a_unit, b, ldb, rows, units, factor, c, ahead);
#elif HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
  for (int64_t lane = 0; lane < ldb; lane += kMlaLanes) {
    for (int64_t r = 0; r < rows; r += 2) {
      if (lane == 0) ahead.Share(r / 2, rows / 2);
      PlainTile(a + r * a_row, a_row, a_unit, b + lane, ldb, units, factor ? factor + lane : nullptr,
                c + r * ldb + lane);
    }
  }
#else
  // 16 registers: 4 x 2 vectors; a group of 16 lanes is two vectors of 8 or four of 4.
  const int64_t step = 2 * static_cast<int64_t>(hn::Lanes(D()));
  for (int64_t lane = 0; lane < ldb; lane += step) {
    Rows<4, 2>(a, a_row, a_unit, b + lane, ldb, rows, units, factor ? factor + lane : nullptr, c + lane,
               lane == 0 ? ahead : MlaPrefetch());
  }
#endif
}

template <class T>
float ValueOf(T x) {
  if constexpr (sizeof(T) == 2) {
    return ToFloat(bf16{x});
  } else {
    return x;
  }
}

template <class T>
void Pack(const T* src, int64_t stride, int64_t count, int64_t units, int64_t groups, uint32_t* dst) {
  const int64_t lanes = groups * kMlaLanes;
  for (int64_t u0 = 0; u0 < units; u0 += 16) {  // 16 units at a time: the lines written stay in L1
    const int64_t end = units < u0 + 16 ? units : u0 + 16;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      for (int64_t u = u0; u < end; ++u) {
        dst[u * lanes + lane] = lane < count ? std::bit_cast<uint32_t>(ValueOf(src[lane * stride + u])) : 0;
      }
    }
  }
}

template <class T>
void Units(const T* src, int64_t n, uint32_t* dst) {
  for (int64_t i = 0; i < n; ++i) dst[i] = std::bit_cast<uint32_t>(ValueOf(src[i]));
}

template <class T>
void Across(const T* src, int64_t stride, int64_t keys, int64_t n, uint32_t* dst, int64_t dst_stride) {
  for (int64_t k = 0; k < keys; ++k) Units(src + k * stride, n, dst + k * dst_stride);
  for (int64_t k = keys; k < 64; ++k) std::memset(dst + k * dst_stride, 0, static_cast<size_t>(n) * 4);
}

void Finish(const float* values, const float* sum, int64_t groups, int64_t count, int64_t channels, float* out,
            int64_t stride) {
  const int64_t lanes = groups * kMlaLanes;
  for (int64_t c0 = 0; c0 < channels; c0 += 16) {
    const int64_t end = channels < c0 + 16 ? channels : c0 + 16;
    for (int64_t lane = 0; lane < count; ++lane) {
      const float inverse = 1 / sum[lane];
      for (int64_t c = c0; c < end; ++c) out[lane * stride + c] = values[c * lanes + lane] * inverse + 0.0f;
    }
  }
}

template <bool kMasked>
HWY_INLINE void SoftmaxVector(float* s, int64_t ld, float scale, const int32_t* visible, float* largest, float* sum,
                              float* factor) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const V vscale = hn::Set(d, scale);
  const auto limit = kMasked ? hn::Load(di, visible) : hn::Zero(di);
  const auto seen = [&](int64_t key)
                        HWY_ATTR { return hn::RebindMask(d, hn::Gt(limit, hn::Set(di, static_cast<int32_t>(key)))); };
  const V before = hn::Load(d, largest);
  V m = before;
  for (int64_t key = 0; key < 64; ++key) {
    V x = hn::Mul(hn::Load(d, s + key * ld), vscale);
    if (kMasked) x = hn::IfThenElse(seen(key), x, lowest);
    hn::Store(x, d, s + key * ld);
    m = hn::Max(m, x);
  }
  const V f = ExpOf(d, hn::Sub(before, m));
  V total = hn::Zero(d);
  for (int64_t key = 0; key < 64; ++key) {
    V p = ExpOf(d, hn::Sub(hn::Load(d, s + key * ld), m));
    if (kMasked) p = hn::IfThenElseZero(seen(key), p);
    hn::Store(p, d, s + key * ld);
    total = hn::Add(total, p);
  }
  hn::Store(m, d, largest);
  hn::Store(f, d, factor);
  hn::Store(hn::MulAdd(hn::Load(d, sum), f, total), d, sum);
}

}  // namespace

// Before the first tile largest is minus infinity: then factor is exp(-inf) = 0. Key 0 is visible to every lane, so
// largest is finite from then on, and a tile that a lane sees nothing of leaves it as it was: factor 1, p = 0.
void SoftmaxTile(float* s, int64_t groups, float scale, const int32_t* visible, float* largest, float* sum,
                 float* factor) {
  const int64_t ld = groups * kMlaLanes;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  for (int64_t lane = 0; lane < ld; lane += lanes) {
    if (visible) {
      SoftmaxVector<true>(s + lane, ld, scale, visible + lane, largest + lane, sum + lane, factor + lane);
    } else {
      SoftmaxVector<false>(s + lane, ld, scale, nullptr, largest + lane, sum + lane, factor + lane);
    }
  }
}

extern const MlaOps kMlaOps;
const MlaOps kMlaOps = {
    1, Panel, Pack<float>, Pack<uint16_t>, Units<float>, Units<uint16_t>, Across<float>, Across<uint16_t>, Finish};

}  // namespace HWY_NAMESPACE
}  // namespace kestrel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kestrel {

const MlaOps& GetMlaOps(Isa isa, bool bf16_products) {
  if (isa == Isa::kAvx512Bf16 && bf16_products && MlaOpsBf16() != nullptr) return *MlaOpsBf16();
  return KESTREL_PICK_TARGET(isa, kMlaOps);
}

MlaSoftmaxTile GetMlaSoftmaxTile(Isa isa) { return KESTREL_PICK_TARGET(isa, SoftmaxTile); }

}  // namespace kestrel
#endif
