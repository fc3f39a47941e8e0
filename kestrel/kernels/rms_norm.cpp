#include "kestrel/kernels/rms_norm.h"

#include "kestrel/kernels/parallel.h"
#include "kestrel/kernels/simd/vector_table.h"

namespace kestrel {

void RmsNorm(Context& ctx, const float* x, const float* w, float eps, int64_t rows, int64_t n, float* out) {
  const VectorTable& table = GetVectorTable(ctx.isa);
  ForRows(ctx, rows, 0.15 * static_cast<double>(n),
          [&](int64_t r) { table.rms_norm(x + r * n, w, eps, n, out + r * n); });
}

void GatedRmsNorm(Context& ctx, const float* o, const float* w, float eps, const float* gate, int64_t rows,
                  int64_t heads, int64_t d, float* out) {
  const VectorTable& table = GetVectorTable(ctx.isa);
  ForRows(ctx, rows * heads, 0.7 * static_cast<double>(d),
          [&](int64_t r) { table.gated_rms_norm(o + r * d, w, eps, gate + r * d, d, out + r * d); });
}

void L2Norm(Context& ctx, const float* x, float eps, int64_t rows, int64_t n, float* out) {
  const VectorTable& table = GetVectorTable(ctx.isa);
  ForRows(ctx, rows, 0.15 * static_cast<double>(n), [&](int64_t r) { table.l2_norm(x + r * n, eps, n, out + r * n); });
}

}  // namespace kestrel
