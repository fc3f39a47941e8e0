#include "kestrel/kernels/matmul/int16_rows.h"

#include "kestrel/base/float_types.h"
#include "kestrel/kernels/matmul/tile.h"

namespace kestrel::matmul {

Int16Rows QuantizeRows(Context& ctx, const Activations& x) {
  const int64_t groups = x.stride / kMxfp4Group;
  auto* value = ctx.arena.Take<int16_t>(x.rows * x.stride);
  auto* scale = ctx.arena.Take<float>(x.rows * groups);
  const auto quantize = TilesFor(ctx.isa).quantize;
  const auto quantize_row = [&](int64_t row, int) {
    const int64_t at = row * x.stride;
    quantize(x.f32 + at, groups, value + at, scale + row * groups);
  };
  if (x.rows * x.cols < kForkElements) {
    for (int64_t row = 0; row < x.rows; ++row) quantize_row(row, 0);
  } else {
    ctx.pool.Run(x.rows, quantize_row);
  }
  return {value, scale};
}

}  // namespace kestrel::matmul
