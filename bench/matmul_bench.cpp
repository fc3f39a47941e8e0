#include "bench/matmul_bench.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "bench/median.h"
#include "bench/onednn_peak.h"
#include "bench/roofline.h"
#include "kestrel/base/aligned.h"
#include "kestrel/base/check.h"
#include "kestrel/base/clock.h"
#include "kestrel/base/rng.h"
#include "kestrel/kernels/matmul/matmul.h"

namespace kestrel::bench {
namespace {

struct Case {
  const char* name;
  WeightType type;
  int64_t rows;             // of activations
  int64_t outputs, inputs;  // of one matrix
  int64_t matrices;         // distinct ones, so that nothing is left in the caches
  int threads;
  bool gemm;  // roof: oneDNN, else plain reads
};

constexpr Case kCases[] = {
    {"mxfp4_gemv_1t", WeightType::kMxfp4, 1, 3072, 3584, 160, 1, false},
    {"mxfp4_gemv_2t", WeightType::kMxfp4, 1, 3072, 3584, 160, 2, false},
    {"mxfp4_rows2_2t", WeightType::kMxfp4, 2, 3072, 3584, 160, 2, false},
    {"mxfp4_rows4_2t", WeightType::kMxfp4, 4, 3072, 3584, 160, 2, false},
    {"mxfp4_rows8_2t", WeightType::kMxfp4, 8, 3072, 3584, 160, 2, false},
    {"bf16_gemv_1t", WeightType::kBf16, 1, 12288, 7168, 4, 1, false},
    {"bf16_gemv_2t", WeightType::kBf16, 1, 12288, 7168, 4, 2, false},
    {"bf16_rows8_2t", WeightType::kBf16, 8, 12288, 7168, 4, 2, false},
    {"bf16_gemm_128", WeightType::kBf16, 128, 4096, 4096, 1, 2, true},
    {"mxfp4_gemm_128", WeightType::kMxfp4, 128, 4096, 4096, 4, 2, true},
    {"mxfp4_gemm_16", WeightType::kMxfp4, 16, 4096, 4096, 8, 2, true},
};

// One random matrix in file form, packed matrices times over.
struct Weights {
  std::vector<uint8_t> source, scale;
  AlignedBuffer packed;
  std::vector<PackedMatrix> matrix;

  Weights(const Case& c, ThreadPool& pool) {
    Rng rng(1);
    const int64_t count = c.outputs * c.inputs;
    const bool fp4 = c.type == WeightType::kMxfp4;
    source.resize(static_cast<size_t>(fp4 ? count / 2 : count * 2));
    for (size_t i = 0; i < source.size(); i += 2) {
      const uint64_t r = rng.Next();
      const bf16 value = fp4 ? bf16{static_cast<uint16_t>(r)} : ToBf16(static_cast<float>(r >> 40) * 0x1p-24f - .5f);
      std::memcpy(&source[i], &value, 2);
    }
    scale.resize(static_cast<size_t>(count / kMxfp4Group));
    for (uint8_t& s : scale) s = static_cast<uint8_t>(120 + rng.Below(4));
    const size_t bytes = PackedBytes(c.type, c.outputs, c.inputs);
    packed = AlignedBuffer(bytes * static_cast<size_t>(c.matrices));
    pool.Run(c.matrices * PackBlocks(c.outputs), [&](int64_t task, int) {
      const int64_t m = task / PackBlocks(c.outputs);
      const int64_t block = task % PackBlocks(c.outputs);
      std::byte* out = packed.data() + static_cast<size_t>(m) * bytes;
      if (fp4) {
        PackMxfp4(source.data(), scale.data(), c.outputs, c.inputs, block, block + 1, out);
      } else {
        PackBf16(reinterpret_cast<const bf16*>(source.data()), c.outputs, c.inputs, block, block + 1, out);
      }
    });
    for (int64_t m = 0; m < c.matrices; ++m) {
      matrix.push_back({c.type, c.outputs, c.inputs, packed.data() + static_cast<size_t>(m) * bytes});
    }
  }

  double Value(const Case& c, int64_t n, int64_t k) const {
    const int64_t i = n * c.inputs + k;
    if (c.type == WeightType::kMxfp4) {
      const int code = source[static_cast<size_t>(i / 2)] >> (i % 2 * 4) & 15;
      return static_cast<double>(kE2m1[code]) * E8m0ToFloat(scale[static_cast<size_t>(i / kMxfp4Group)]);
    }
    bf16 h;
    std::memcpy(&h, &source[static_cast<size_t>(i) * 2], 2);
    return ToFloat(h);
  }
};

// Largest magnitude of the group of 32 that column k is in.
double GroupMaximum(const float* row, int64_t k) {
  const float* group = row + k / kMxfp4Group * kMxfp4Group;
  double largest = 0;
  for (int i = 0; i < kMxfp4Group; ++i) largest = std::max(largest, std::fabs(double{group[i]}));
  return largest;
}

// A sample of outputs of every row against sums in double. The bound: float32 additions, and for MXFP4 the 15 bits of
// the activations, half a unit each.
bool IsRight(const Case& c, const Weights& w, const Activations& x, const float* y) {
  const bool fp4 = c.type == WeightType::kMxfp4;
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t n = r % 7; n < c.outputs; n += 509) {
      double sum = 0, magnitude = 0, quantized = 0;
      for (int64_t k = 0; k < c.inputs; ++k) {
        const int64_t i = r * x.stride + k;
        const double value = w.Value(c, n, k), product = value * (fp4 ? x.f32[i] : ToFloat(x.rounded[i]));
        sum += product;
        magnitude += std::fabs(product);
        if (fp4) quantized += std::fabs(value) * GroupMaximum(x.f32 + r * x.stride, k) * 0x1.001p-15;
      }
      const double additions = static_cast<double>(fp4 ? c.inputs / kMxfp4Group : c.inputs);
      if (!(std::fabs(y[r * c.outputs + n] - sum) <= quantized + magnitude * additions * 0x1p-23)) return false;
    }
  }
  return true;
}

// The best variant's median, in units of work a second.
double Best(const std::array<std::vector<double>, kReadVariants>& seconds, double work) {
  double best = 0;
  for (const auto& s : seconds) best = std::max(best, s.empty() ? 0 : work / Median(s));
  return best;
}

BenchResult Measure(const Case& c, double budget) {
  ThreadPool pool(c.threads);
  Arena arena(64 << 20);
  Context ctx{pool, arena};
  const Weights w(c, pool);
  Rng rng(2);
  std::vector<float> x(static_cast<size_t>(c.rows * c.inputs));
  for (float& v : x) v = static_cast<float>(rng.Normal());
  std::vector<float> y(static_cast<size_t>(c.rows * c.outputs));
  const Activations a = PrepareActivations(ctx, x.data(), c.rows, c.inputs, c.inputs);
  const auto once = [&] {
    const double start = NowSeconds();
    for (const PackedMatrix& m : w.matrix) MatMul(ctx, a, m, y.data(), c.outputs);
    return (NowSeconds() - start) / static_cast<double>(c.matrices);
  };
  const double bytes = static_cast<double>(w.packed.size()) / static_cast<double>(c.matrices);
  const double flops = 2.0 * static_cast<double>(c.rows * c.inputs) * static_cast<double>(c.outputs);
  std::unique_ptr<OneDnnMatMul> onednn;
  if (c.gemm) onednn = std::make_unique<OneDnnMatMul>(128, 4096, 4096);

  std::vector<double> kernel;
  std::array<std::vector<double>, kReadVariants> roof;
  const double end = NowSeconds() + budget;
  for (int round = -1; round < 3 || NowSeconds() < end; ++round) {  // round -1 warms up
    if (c.gemm && onednn->available()) {
      const double s = onednn->Seconds();
      if (round >= 0) roof[0].push_back(s);
    }
    for (int v = 0; v < kReadVariants && !c.gemm; ++v) {
      const double s = ReadSeconds(pool, {w.packed.data(), w.packed.size()}, v) / static_cast<double>(c.matrices);
      if (round >= 0) roof[static_cast<size_t>(v)].push_back(s);
      const double k = v % 3 == 2 ? once() : 0;  // twice a round: the machine's speed drifts
      if (round >= 0 && k > 0) kernel.push_back(k);
    }
    if (c.gemm) {
      const double k = once();
      if (round >= 0) kernel.push_back(k);
    }
  }

  BenchResult result;
  result.name = c.name;
  result.unit = c.gemm ? "GFLOP/s" : "GB/s";
  result.value = (c.gemm ? flops : bytes) / Median(kernel) / 1e9;
  result.roof = Best(roof, c.gemm ? 2.0 * 128 * 4096 * 4096 : bytes) / 1e9;
  result.ratio = result.roof > 0 ? result.value / result.roof : 0;
  result.spread = Spread(kernel);
  if (!IsRight(c, w, a, y.data())) result.value = -1;
  return result;
}

}  // namespace

std::vector<std::string> MatMulBenchNames() {
  std::vector<std::string> names;
  for (const Case& c : kCases) names.emplace_back(c.name);
  return names;
}

BenchResult RunMatMulBench(std::string_view name, double seconds) {
  const auto* c = std::find_if(std::begin(kCases), std::end(kCases), [&](const Case& k) { return name == k.name; });
  KESTREL_CHECK(c != std::end(kCases));
  return Measure(*c, seconds);
}

}  // namespace kestrel::bench
