#include "bench/kda_bench.h"

#include <algorithm>
#include <vector>

#include "bench/median.h"
#include "kestrel/base/aligned.h"
#include "kestrel/base/clock.h"
#include "kestrel/base/rng.h"
#include "kestrel/kernels/kda/kda.h"

namespace kestrel::bench {
namespace {

struct Inputs {
  Inputs(const KdaShape& shape, int64_t rows)
      : width(int64_t{shape.heads} * shape.head_dim),
        data((rows * (5 * width + shape.heads) + width + shape.heads) * 4) {
    Rng rng(1);
    float* p = data.as<float>();
    for (size_t i = 0; i < data.size() / 4; ++i) p[i] = static_cast<float>(3.46 * (rng.Uniform() - 0.5));
    const int64_t size = rows * width;
    float* tail = p + 5 * size;
    out = p + 4 * size;
    kda = {p, p + size, p + 2 * size, p + 3 * size, tail, tail + rows * shape.heads, tail + rows * shape.heads + width};
    for (int h = 0; h < shape.heads; ++h) tail[rows * shape.heads + width + h] = 1;
  }
  int64_t width;
  AlignedBuffer data;
  KdaInputs kda;
  float* out;
};

}  // namespace

BenchResult BenchKdaStep(Context& context, double read_bytes_per_second) {
  const KdaShape shape{96, 128, true, -5};
  const int layers = 64, tile = 16;
  const size_t bytes = (KdaStateBytes(shape) + 4095) / 4096 * 4096;
  AlignedBuffer states(bytes * layers);
  Inputs in(shape, 1);
  const auto token = [&] {
    for (int layer = 0; layer < layers; ++layer) {
      const KdaSegment segment{states.data() + bytes * static_cast<size_t>(layer), 0, 1};
      KdaForward(context, shape, {&segment, 1}, in.kda, in.out);
    }
  };
  for (int t = 0; t < tile; ++t) token();
  std::vector<double> us(7);
  for (double& u : us) {
    const double start = NowSeconds();
    for (int t = 0; t < tile; ++t) token();
    u = (NowSeconds() - start) / (tile * layers) * 1e6;
  }
  // A row of 128 floats is 512 bytes. A step reads S and the two decay rows and writes those; with j rows pending it
  // reads j keys and j values, writes j keys back, and writes its own two. The end of a tile reads and writes S once
  // more.
  const double s = 65536, row = 512, pending = (tile - 1) / 2.0;
  const double touched = shape.heads * (s + 2 * s / tile + row * (4 + 3 * pending + 2));
  const double roof = touched / read_bytes_per_second * 1e6;
  return {"kda_step", Median(us), "us/token", roof, roof / Median(us), Spread(us)};
}

BenchResult BenchKdaChunk(Context& context, MatMulMode mode) {
  const KdaShape shape{32, 128, true, -5};
  const int64_t rows = 1024;
  AlignedBuffer state(KdaStateBytes(shape));
  Inputs in(shape, rows);
  const MatMulMode before = context.matmul;
  context.matmul = mode;
  const KdaSegment segment{state.data(), 0, rows};
  std::vector<double> us(31);
  for (double& u : us) {
    const double start = NowSeconds();
    KdaForward(context, shape, {&segment, 1}, in.kda, in.out);
    u = (NowSeconds() - start) / rows * 1e6;
  }
  context.matmul = before;
  return {mode == MatMulMode::kBf16 ? "kda_chunk" : "kda_chunk_f32", Median(us), "us/token", 0, 0, Spread(us)};
}

std::vector<BenchResult> BenchKda(Context& context, double read_bytes_per_second) {
  return {BenchKdaStep(context, read_bytes_per_second), BenchKdaChunk(context, MatMulMode::kBf16),
          BenchKdaChunk(context, MatMulMode::kF32)};
}

}  // namespace kestrel::bench
