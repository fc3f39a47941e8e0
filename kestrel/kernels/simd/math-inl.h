// Per-target include (no guard but Highway's toggle): exp, sigmoid and tanh in float32, each within 2 ulp over the
// whole range, right in the limits and with NaN in, NaN out.
#if defined(KESTREL_KERNELS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KESTREL_KERNELS_SIMD_MATH_INL_H_
#undef KESTREL_KERNELS_SIMD_MATH_INL_H_
#else
#define KESTREL_KERNELS_SIMD_MATH_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kestrel {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// x = n ln 2 + r, |r| <= ln 2 / 2; the Taylor sum to r^7 leaves r^8 / 8! < 6e-9 of 1. 2^n is applied in two factors, so
// that results down to the smallest denormal, and overflow to infinity, come out by themselves.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOf(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V bounded = hn::Min(hn::Max(x, hn::Set(d, -104.0f)), hn::Set(d, 89.0f));
  const V n = hn::Round(hn::Mul(bounded, hn::Set(d, 1.44269504f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), bounded);  // 355/512: n times it is exact
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  V p = hn::Set(d, 1.0f / 5040);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 720));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 120));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 6));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const auto k = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(k);
  const auto bias = hn::Set(di, 127);
  const V low = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const V high = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(k, half), bias)));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Mul(hn::Mul(p, low), high));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V SigmoidOf(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, ExpOf(d, hn::Neg(x))));
}

// Below 0.55 an odd polynomial: (tanh(x)/x - 1) / x^2 as a quartic in x^2 through the five Chebyshev nodes of [0,
// 0.3025], relative error 3.6e-9. Above it 1 - 2/(e^2x + 1), where the rounding is that of a number below 1/2.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V TanhOf(D d, V x) {
  const V a = hn::Abs(x);
  const V s = hn::Mul(a, a);
  V p = hn::Set(d, -0.00661022783f);
  p = hn::MulAdd(p, s, hn::Set(d, 0.0213093887f));
  p = hn::MulAdd(p, s, hn::Set(d, -0.0539094288f));
  p = hn::MulAdd(p, s, hn::Set(d, 0.133331137f));
  p = hn::MulAdd(p, s, hn::Set(d, -0.33333332f));
  const V small = hn::MulAdd(hn::Mul(p, s), a, a);
  const V one = hn::Set(d, 1.0f);
  const V large = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(ExpOf(d, hn::Add(a, a)), one)));
  return hn::CopySign(hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.55f)), small, large), x);
}

}  // namespace HWY_NAMESPACE
}  // namespace kestrel
HWY_AFTER_NAMESPACE();

#endif
