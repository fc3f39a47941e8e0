// Scalar double references of the norms, one row.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace kestrel {

inline std::vector<double> RmsNormRef(const float* x /*[n]*/, const float* w /*[n]*/, double eps, int64_t n) {
  double square = 0;
  for (int64_t i = 0; i < n; ++i) square += double{x[i]} * x[i];
  std::vector<double> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    out[static_cast<size_t>(i)] = w[i] * double{x[i]} / std::sqrt(square / static_cast<double>(n) + eps);
  return out;
}

inline std::vector<double> L2NormRef(const float* x /*[n]*/, double eps, int64_t n) {
  double square = 0;
  for (int64_t i = 0; i < n; ++i) square += double{x[i]} * x[i];
  std::vector<double> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) out[static_cast<size_t>(i)] = x[i] / std::sqrt(square + eps);
  return out;
}

}  // namespace kestrel
