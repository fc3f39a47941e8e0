// y[n] = sum_k x[k] w[n][k] in double, and the sum of |x w|, which bounds the rounding of any order of summation.
#pragma once

#include <cmath>
#include <cstdint>

namespace kestrel::ref {

struct Dot {
  double value = 0;
  double magnitude = 0;
};

inline Dot MatMulElement(const double* x /*[k]*/, const double* w /*[k]*/, int64_t k) {
  Dot d;
  for (int64_t i = 0; i < k; ++i) {
    d.value += x[i] * w[i];
    d.magnitude += std::fabs(x[i] * w[i]);
  }
  return d;
}

}  // namespace kestrel::ref
