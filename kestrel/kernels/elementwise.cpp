#include "kestrel/kernels/elementwise.h"

#include "kestrel/base/check.h"
#include "kestrel/kernels/parallel.h"
#include "kestrel/kernels/simd/vector_table.h"

namespace kestrel {
namespace {

constexpr int64_t kPiece = 4096;    // elements: 3 to 10 us of work
constexpr int64_t kMaxSlots = 256;  // experts of a token; the release has 16

}  // namespace

void Situ(Context& ctx, const float* gate, const float* up, float beta, float linear_beta, int64_t n, float* out) {
  const VectorTable& table = GetVectorTable(ctx.isa);
  ForPieces(ctx, n, kPiece, 2.0,
            [&](int64_t b, int64_t e) { table.situ(gate + b, up + b, beta, linear_beta, e - b, out + b); });
}

void SiluMul(Context& ctx, const float* gate, const float* up, int64_t n, float* out) {
  const VectorTable& table = GetVectorTable(ctx.isa);
  ForPieces(ctx, n, kPiece, 0.7, [&](int64_t b, int64_t e) { table.silu_mul(gate + b, up + b, e - b, out + b); });
}

void Silu(Context& ctx, const float* x, int64_t n, float* out) {
  const VectorTable& table = GetVectorTable(ctx.isa);
  ForPieces(ctx, n, kPiece, 0.7, [&](int64_t b, int64_t e) { table.silu(x + b, e - b, out + b); });
}

void Sigmoid(Context& ctx, const float* x, int64_t n, float* out) {
  const VectorTable& table = GetVectorTable(ctx.isa);
  ForPieces(ctx, n, kPiece, 0.7, [&](int64_t b, int64_t e) { table.sigmoid(x + b, e - b, out + b); });
}

void SigmoidMul(Context& ctx, const float* o, const float* gate, int64_t n, float* out) {
  const VectorTable& table = GetVectorTable(ctx.isa);
  ForPieces(ctx, n, kPiece, 0.7, [&](int64_t b, int64_t e) { table.sigmoid_mul(o + b, gate + b, e - b, out + b); });
}

void Softmax(Isa isa, float* x, int64_t n) { GetVectorTable(isa).softmax(x, n); }

void AddTo(Context& ctx, const float* x, int64_t n, float* y) {
  const VectorTable& table = GetVectorTable(ctx.isa);
  ForPieces(ctx, n, 4 * kPiece, 0.2, [&](int64_t b, int64_t e) { table.add_to(x + b, e - b, y + b); });
}

void CombineExperts(Context& ctx, const float* y, const float* weights, int64_t rows, int64_t k, int64_t n,
                    float* out) {
  KESTREL_CHECK(k <= kMaxSlots);
  const VectorTable& table = GetVectorTable(ctx.isa);
  ForRows(ctx, rows, 0.1 * static_cast<double>(k * n), [&](int64_t r) {
    const float* slots[kMaxSlots];
    for (int64_t s = 0; s < k; ++s) slots[s] = y + (r * k + s) * n;
    table.weighted_sum(slots, weights + r * k, k, n, out + r * n);
  });
}

}  // namespace kestrel
