#include "kestrel/kernels/embedding.h"

#include <algorithm>

#include "kestrel/kernels/parallel.h"

namespace kestrel {

void EmbeddingGather(Context& ctx, const bf16* table, const int32_t* ids, int64_t rows, int64_t D, float* out) {
  ForRows(ctx, rows, 0.3 * static_cast<double>(D), [&](int64_t r) {
    const bf16* row = table + static_cast<int64_t>(ids[r]) * D;
    for (int64_t i = 0; i < D; ++i) out[r * D + i] = ToFloat(row[i]);
  });
}

void EmbeddingGather(Context& ctx, const float* table, const int32_t* ids, int64_t rows, int64_t D, float* out) {
  ForRows(ctx, rows, 0.3 * static_cast<double>(D),
          [&](int64_t r) { std::copy_n(table + static_cast<int64_t>(ids[r]) * D, D, out + r * D); });
}

}  // namespace kestrel
