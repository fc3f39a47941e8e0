// The KDA head in plain C++: any head_dim, any CPU. Every sum is one chain in index order.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kestrel/kernels/kda/kda_head.h"

namespace kestrel::kda {
namespace {

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
float Softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))); }

float InverseNorm(const float* x, int dim) {  // x [dim]
  float sum = 0;
  for (int d = 0; d < dim; ++d) sum += x[d] * x[d];
  return 1.0f / std::sqrt(sum + 1e-6f);
}

struct PortableOps {
  static void Prepare(const HeadTask& t, const TileScratch& scratch, int64_t row, int count, int slot) {
    for (int i = 0; i < count; ++i) PrepareRow(t, scratch, row + i, i, slot + i);
  }
  static void Finish(const HeadTask& t, const TileScratch& scratch, int64_t row, int count, int slot) {
    for (int i = 0; i < count; ++i) FinishRow(t, scratch, row + i, i, slot + i);
  }

  static void PrepareRow(const HeadTask& t, const TileScratch& scratch, int64_t row, int i, int slot) {
    const int64_t at = row * t.stride, stride = Layout(t.dim).padded;
    const float q_scale = InverseNorm(t.q + at, t.dim) / std::sqrt(static_cast<float>(t.dim));
    const float k_scale = InverseNorm(t.k + at, t.dim);
    float* alpha = scratch.alpha + i * t.dim;
    float* q = scratch.q + i * t.dim;
    float* k = t.keys + slot * stride;
    float* x = scratch.x + 2 * i * t.dim;
    for (int d = 0; d < t.dim; ++d) {
      const float z = t.z[at + d] + t.dt_bias[d];
      const float g = t.bounded ? t.lower_bound * Sigmoid(t.a * z) : -t.a * Softplus(z);
      alpha[d] = std::exp(g);
      t.log_decay[d] = kLog2E * g + (slot == 0 ? 0 : t.log_decay[d]);
      t.decay[d] = slot == 0 ? alpha[d] : t.decay[d] * alpha[d];
      q[d] = t.q[at + d] * q_scale;
      k[d] = t.k[at + d] * k_scale;
      x[d] = k[d] * t.decay[d];
      x[t.dim + d] = q[d] * t.decay[d];
    }
    scratch.beta[i] = Sigmoid(t.beta[row * t.beta_stride]);
  }

  static void Answer(const HeadTask& t, const TileScratch& scratch, int64_t, int rows) {
    const Layout layout(t.dim);
    for (int r = 0; r < 2 * rows; ++r) {
      float* y = scratch.answers + r * t.dim;
      std::fill_n(y, t.dim, 0.0f);
      for (int d = 0; d < t.dim; ++d) {
        const float x = scratch.x[r * t.dim + d];
        for (int e = 0; e < t.dim; ++e) y[e] += t.s[layout.Index(d, e)] * x;
      }
    }
  }

  static void FinishRow(const HeadTask& t, const TileScratch& scratch, int64_t row, int i, int slot) {
    const int64_t stride = Layout(t.dim).padded;
    const float* k = t.keys + slot * stride;
    const float* q = scratch.q + i * t.dim;
    const float* alpha = scratch.alpha + i * t.dim;
    float* answer = scratch.answers + 2 * i * t.dim;
    float* o = answer + t.dim;
    for (int j = 0; j <= slot; ++j) {
      float* key = t.keys + j * stride;
      float* value = t.values + j * stride;
      float kk = 0, qk = 0;
      for (int d = 0; d < t.dim; ++d) {
        if (j < slot) key[d] *= alpha[d];
        kk += k[d] * key[d];
        qk += q[d] * key[d];
      }
      if (j == slot) {
        for (int e = 0; e < t.dim; ++e) value[e] = scratch.beta[i] * (t.v[row * t.stride + e] - answer[e]);
      } else {
        for (int e = 0; e < t.dim; ++e) answer[e] += kk * value[e];
      }
      for (int e = 0; e < t.dim; ++e) o[e] += qk * value[e];
    }
    std::copy_n(o, t.dim, t.out + row * t.stride);
  }

  static void Fold(const HeadTask& t, int64_t) {
    const Layout layout(t.dim);
    for (int d = 0; d < t.dim; ++d) {
      const float decay = std::exp2(t.log_decay[d]);
      for (int e = 0; e < t.dim; ++e) {
        float s = t.s[layout.Index(d, e)] * decay;
        for (int j = 0; j < kTile; ++j) s += t.keys[j * layout.padded + d] * t.values[j * layout.padded + e];
        t.s[layout.Index(d, e)] = s;
      }
    }
    for (int e = 0; e < t.dim; ++e) {
      uint32_t peak = 0;
      for (int d = 0; d < t.dim; ++d)
        peak = std::max(peak, std::bit_cast<uint32_t>(std::fabs(t.s[layout.Index(d, e)])));
      t.peaks[e] = std::bit_cast<float>(peak);
    }
  }
};

}  // namespace

void ForwardHeadPortable(const HeadTask& task) { RunHead<PortableOps>(task); }

}  // namespace kestrel::kda
