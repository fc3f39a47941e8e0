// Kimi Delta Attention token by token in double: what the kernels are tested against. One head, dim = keys = values.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace kestrel::ref {

// q, k, v, z [rows, dim] with `stride` between rows; beta [rows] with beta_stride; s [dim, dim] moves on; out [rows,
// dim].
inline void Kda(int64_t rows, int64_t dim, const float* q, const float* k, const float* v, const float* z,
                int64_t stride, const float* beta, int64_t beta_stride, const float* dt_bias, float a, bool bounded,
                double lower_bound, std::vector<double>& s, std::vector<double>& out) {
  const auto inverse_norm = [dim](const float* x) {
    double sum = 1e-6;
    for (int64_t d = 0; d < dim; ++d) sum += double{x[d]} * x[d];
    return 1 / std::sqrt(sum);
  };
  out.assign(static_cast<size_t>(rows * dim), 0);
  for (int64_t t = 0; t < rows; ++t, q += stride, k += stride, v += stride, z += stride, beta += beta_stride) {
    const double nq = inverse_norm(q) / std::sqrt(static_cast<double>(dim)), nk = inverse_norm(k);
    const double b = 1 / (1 + std::exp(-double{*beta}));
    for (int64_t d = 0; d < dim; ++d) {
      const double x = double{z[d]} + dt_bias[d];
      const double g =
          bounded ? lower_bound / (1 + std::exp(-a * x)) : -a * (std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x))));
      for (int64_t e = 0; e < dim; ++e) s[d * dim + e] *= std::exp(g);
    }
    for (int64_t e = 0; e < dim; ++e) {
      double answer = 0;
      for (int64_t d = 0; d < dim; ++d) answer += s[d * dim + e] * k[d] * nk;
      const double change = b * (v[e] - answer);
      for (int64_t d = 0; d < dim; ++d) out[t * dim + e] += (s[d * dim + e] += k[d] * nk * change) * q[d] * nq;
    }
  }
}

}  // namespace kestrel::ref
