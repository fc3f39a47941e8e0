// The bodies behind VectorTable, compiled once for each target. Sums keep four vectors of partial sums and add them in
// one fixed order, so that a row has the same bits wherever it stands.
#include "kestrel/kernels/simd/vector_table.h"

#include <cmath>
#include <limits>

#include "kestrel/kernels/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kestrel/kernels/simd/vector_table.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kestrel/kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kestrel {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// out[i] = f(a[i], b[i]); the tail goes through a padded copy, so every element sees the same instructions.
template <class F>
HWY_INLINE void Map2(const float* a, const float* b, int64_t n, float* out, F f) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(f(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  if (i == n) return;
  HWY_ALIGN float ta[HWY_MAX_BYTES / 4] = {}, tb[HWY_MAX_BYTES / 4] = {};
  for (int64_t j = i; j < n; ++j) ta[j - i] = a[j], tb[j - i] = b[j];
  hn::Store(f(hn::Load(d, ta), hn::Load(d, tb)), d, ta);
  for (int64_t j = i; j < n; ++j) out[j] = ta[j - i];
}

// sum over i of f(a[i], b[i], accumulator), where f(0, 0, s) = s.
template <class F>
HWY_INLINE float Reduce2(const float* a, const float* b, int64_t n, F f) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = f(hn::LoadU(d, a + i), hn::LoadU(d, b + i), s0);
    s1 = f(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), s1);
    s2 = f(hn::LoadU(d, a + i + 2 * lanes), hn::LoadU(d, b + i + 2 * lanes), s2);
    s3 = f(hn::LoadU(d, a + i + 3 * lanes), hn::LoadU(d, b + i + 3 * lanes), s3);
  }
  for (; i + lanes <= n; i += lanes) s0 = f(hn::LoadU(d, a + i), hn::LoadU(d, b + i), s0);
  if (i < n) {
    HWY_ALIGN float ta[HWY_MAX_BYTES / 4] = {}, tb[HWY_MAX_BYTES / 4] = {};
    for (int64_t j = i; j < n; ++j) ta[j - i] = a[j], tb[j - i] = b[j];
    s1 = f(hn::Load(d, ta), hn::Load(d, tb), s1);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

float SumOfSquares(const float* x, int64_t n) {
  return Reduce2(x, x, n, [](V a, V, V s) HWY_ATTR { return hn::MulAdd(a, a, s); });
}

void RmsNorm(const float* x, const float* w, float eps, int64_t n, float* out) {
  const D d;
  const V inverse = hn::Set(d, 1.0f / std::sqrt(SumOfSquares(x, n) / static_cast<float>(n) + eps));
  Map2(x, w, n, out, [&](V a, V b) HWY_ATTR { return hn::Mul(hn::Mul(a, inverse), b); });
}

void SigmoidMul(const float* x, const float* gate, int64_t n, float* out) {
  Map2(x, gate, n, out, [](V a, V g) HWY_ATTR { return hn::Mul(a, SigmoidOf(D(), g)); });
}

void GatedRmsNorm(const float* x, const float* w, float eps, const float* gate, int64_t n, float* out) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V inverse = hn::Set(d, 1.0f / std::sqrt(SumOfSquares(x, n) / static_cast<float>(n) + eps));
  const auto body = [&](V a, V b, V g) HWY_ATTR { return hn::Mul(hn::Mul(hn::Mul(a, inverse), b), SigmoidOf(d, g)); };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(body(hn::LoadU(d, x + i), hn::LoadU(d, w + i), hn::LoadU(d, gate + i)), d, out + i);
  }
  if (i == n) return;
  HWY_ALIGN float tx[HWY_MAX_BYTES / 4] = {}, tw[HWY_MAX_BYTES / 4] = {}, tg[HWY_MAX_BYTES / 4] = {};
  for (int64_t j = i; j < n; ++j) tx[j - i] = x[j], tw[j - i] = w[j], tg[j - i] = gate[j];
  hn::Store(body(hn::Load(d, tx), hn::Load(d, tw), hn::Load(d, tg)), d, tx);
  for (int64_t j = i; j < n; ++j) out[j] = tx[j - i];
}

void L2Norm(const float* x, float eps, int64_t n, float* out) {
  const V inverse = hn::Set(D(), 1.0f / std::sqrt(SumOfSquares(x, n) + eps));
  Map2(x, x, n, out, [&](V a, V) HWY_ATTR { return hn::Mul(a, inverse); });
}

void Situ(const float* gate, const float* up, float beta, float linear_beta, int64_t n, float* out) {
  const D d;
  const V b = hn::Set(d, beta), b_inv = hn::Set(d, 1 / beta);
  const auto gated = [&](V a) HWY_ATTR { return hn::Mul(hn::Mul(b, TanhOf(d, hn::Mul(a, b_inv))), SigmoidOf(d, a)); };
  if (linear_beta <= 0) {
    return Map2(gate, up, n, out, [&](V a, V u) HWY_ATTR { return hn::Mul(gated(a), u); });
  }
  const V lb = hn::Set(d, linear_beta), lb_inv = hn::Set(d, 1 / linear_beta);
  Map2(gate, up, n, out,
       [&](V a, V u) HWY_ATTR { return hn::Mul(gated(a), hn::Mul(lb, TanhOf(d, hn::Mul(u, lb_inv)))); });
}

void SiluMul(const float* gate, const float* up, int64_t n, float* out) {
  Map2(gate, up, n, out, [](V a, V u) HWY_ATTR { return hn::Mul(hn::Mul(a, SigmoidOf(D(), a)), u); });
}

void Silu(const float* x, int64_t n, float* out) {
  Map2(x, x, n, out, [](V a, V) HWY_ATTR { return hn::Mul(a, SigmoidOf(D(), a)); });
}

void Sigmoid(const float* x, int64_t n, float* out) {
  Map2(x, x, n, out, [](V a, V) HWY_ATTR { return SigmoidOf(D(), a); });
}

void Exp(const float* x, int64_t n, float* out) {
  Map2(x, x, n, out, [](V a, V) HWY_ATTR { return ExpOf(D(), a); });
}

void Tanh(const float* x, int64_t n, float* out) {
  Map2(x, x, n, out, [](V a, V) HWY_ATTR { return TanhOf(D(), a); });
}

void AddTo(const float* x, int64_t n, float* y) {
  Map2(x, y, n, y, [](V a, V b) HWY_ATTR { return hn::Add(b, a); });
}

bool MaxFinite(const float* x, int64_t n, float* max) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const V lowest = hn::Set(d, std::numeric_limits<float>::lowest());
  V m0 = lowest, m1 = lowest, z0 = hn::Zero(d), z1 = z0;  // z: x * 0 is 0 for a finite x, NaN otherwise
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const V a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + lanes);
    m0 = hn::Max(m0, a);
    m1 = hn::Max(m1, b);
    z0 = hn::MulAdd(a, hn::Zero(d), z0);
    z1 = hn::MulAdd(b, hn::Zero(d), z1);
  }
  HWY_ALIGN float m[HWY_MAX_BYTES / 4], z[HWY_MAX_BYTES / 4];
  hn::Store(hn::Max(m0, m1), d, m);
  hn::Store(hn::Add(z0, z1), d, z);
  float best = m[0], zero = z[0];
  for (int64_t j = 1; j < lanes; ++j) best = m[j] > best ? m[j] : best, zero += z[j];
  for (; i < n; ++i) best = x[i] > best ? x[i] : best, zero += x[i] * 0;
  *max = best;
  return zero == 0;
}

void Softmax(float* x, int64_t n) {
  if (n <= 0) return;
  float max;
  if (!MaxFinite(x, n, &max)) {  // minus infinity is a mask, plus infinity and NaN make the row NaN
    max = x[0];
    for (int64_t i = 1; i < n; ++i) max = x[i] > max ? x[i] : max;
  }
  const V m = hn::Set(D(), max);
  Map2(x, x, n, x, [&](V a, V) HWY_ATTR { return ExpOf(D(), hn::Sub(a, m)); });
  const float sum = Reduce2(x, x, n, [](V a, V, V s) HWY_ATTR { return hn::Add(s, a); });
  const V inverse = hn::Set(D(), 1 / sum);
  Map2(x, x, n, x, [&](V a, V) HWY_ATTR { return hn::Mul(a, inverse); });
}

void WeightedSum(const float* const* sources, const float* weights, int64_t count, int64_t n, float* out) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    V s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    for (int64_t s = 0; s < count; ++s) {
      const V w = hn::Set(d, weights[s]);
      const float* x = sources[s] + i;
      s0 = hn::MulAdd(w, hn::LoadU(d, x), s0);
      s1 = hn::MulAdd(w, hn::LoadU(d, x + lanes), s1);
      s2 = hn::MulAdd(w, hn::LoadU(d, x + 2 * lanes), s2);
      s3 = hn::MulAdd(w, hn::LoadU(d, x + 3 * lanes), s3);
    }
    hn::StoreU(s0, d, out + i);
    hn::StoreU(s1, d, out + i + lanes);
    hn::StoreU(s2, d, out + i + 2 * lanes);
    hn::StoreU(s3, d, out + i + 3 * lanes);
  }
  const hn::CappedTag<float, 1> one;
  for (; i < n; ++i) {
    auto sum = hn::Zero(one);
    for (int64_t s = 0; s < count; ++s) sum = hn::MulAdd(hn::Set(one, weights[s]), hn::LoadU(one, sources[s] + i), sum);
    hn::StoreU(sum, one, out + i);
  }
}

// Both sums in one pass: depth attention reads each source from L2, and twice would be half as fast.
void DotAndSquare(const float* x, const float* y, int64_t n, float* dot, float* square) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V d0 = hn::Zero(d), d1 = d0, d2 = d0, d3 = d0, s0 = d0, s1 = d0, s2 = d0, s3 = d0;
  int64_t i = 0;
  const auto step = [&](const float* xs, const float* ys, V& dots, V& squares) HWY_ATTR {
    const V a = hn::LoadU(d, xs);
    dots = hn::MulAdd(a, hn::LoadU(d, ys), dots);
    squares = hn::MulAdd(a, a, squares);
  };
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    step(x + i, y + i, d0, s0);
    step(x + i + lanes, y + i + lanes, d1, s1);
    step(x + i + 2 * lanes, y + i + 2 * lanes, d2, s2);
    step(x + i + 3 * lanes, y + i + 3 * lanes, d3, s3);
  }
  for (; i + lanes <= n; i += lanes) step(x + i, y + i, d0, s0);
  if (i < n) {
    HWY_ALIGN float tx[HWY_MAX_BYTES / 4] = {}, ty[HWY_MAX_BYTES / 4] = {};
    for (int64_t j = i; j < n; ++j) tx[j - i] = x[j], ty[j - i] = y[j];
    step(tx, ty, d1, s1);
  }
  *dot = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(d0, d1), hn::Add(d2, d3))));
  *square = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

}  // namespace

extern const VectorTable kVectorTable;
const VectorTable kVectorTable = {RmsNorm, GatedRmsNorm, L2Norm,      Situ,         SiluMul,
                                  Silu,    Sigmoid,      SigmoidMul,  Exp,          Tanh,
                                  Softmax, AddTo,        WeightedSum, DotAndSquare, MaxFinite};

}  // namespace HWY_NAMESPACE
}  // namespace kestrel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kestrel {
const VectorTable& GetVectorTable(Isa isa) { return KESTREL_PICK_TARGET(isa, kVectorTable); }
}  // namespace kestrel
#endif
