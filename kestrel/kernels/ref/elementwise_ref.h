// Scalar double references of the elementwise kernels.
#pragma once

#include <cmath>

namespace kestrel {

inline double SigmoidRef(double x) { return 1 / (1 + std::exp(-x)); }
inline double SiluRef(double x) { return x * SigmoidRef(x); }
inline double SituRef(double gate, double up, double beta, double linear_beta) {
  const double linear = linear_beta > 0 ? linear_beta * std::tanh(up / linear_beta) : up;
  return beta * std::tanh(gate / beta) * SigmoidRef(gate) * linear;
}

}  // namespace kestrel
