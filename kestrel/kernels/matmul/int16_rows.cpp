#include "kestrel/kernels/matmul/int16_rows.h"

#include "kestrel/base/float_types.h"
#include "kestrel/kernels/matmul/tile.h"

namespace kestrel::matmul {
namespace {

template <class F>
void ForEachRow(Context& ctx, const Activations& x, F f) {
  if (x.rows * x.cols < kForkElements) {
    for (int64_t row = 0; row < x.rows; ++row) f(row, 0);
  } else {
    ctx.pool.Run(x.rows, f);
  }
}

}  // namespace

Int16Rows QuantizeRows(Context& ctx, const Activations& x) {
  const int64_t groups = x.stride / kMxfp4Group;
  auto* value = ctx.arena.Take<int16_t>(x.rows * x.stride);
  auto* scale = ctx.arena.Take<float>(x.rows * groups);
  const auto quantize = TilesFor(ctx.isa).quantize;
  const auto quantize_row = [&](int64_t row, int) {
    const int64_t at = row * x.stride;
    quantize(x.f32 + at, groups, value + at, scale + row * groups);
  };
  ForEachRow(ctx, x, quantize_row);
  return {value, scale};
}

const SplitGroup* SplitRows(Context& ctx, const Activations& x, const Int16Rows& rows) {
  const int64_t groups = x.stride / kMxfp4Group;
  auto* out = ctx.arena.Take<SplitGroup>(x.rows * groups);
  const auto split = TilesFor(ctx.isa).split;
  ForEachRow(ctx, x, [&](int64_t row, int) {
    split(rows.value + row * x.stride, rows.scale + row * groups, groups, out + row * groups);
  });
  return out;
}

}  // namespace kestrel::matmul
