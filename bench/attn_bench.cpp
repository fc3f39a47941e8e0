#include "bench/attn_bench.h"

#include <algorithm>

#include "kestrel/base/aligned.h"
#include "kestrel/base/clock.h"
#include "kestrel/base/float_types.h"
#include "kestrel/base/rng.h"
#include "kestrel/kernels/depth_attention.h"
#include "kestrel/kernels/elementwise.h"
#include "kestrel/kernels/mla_attention.h"
#include "kestrel/kernels/router.h"

namespace kestrel::bench {
namespace {

std::vector<float> Random(Rng& rng, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = static_cast<float>(2 * rng.Uniform() - 1);
  return x;
}

struct Timing {
  double seconds;
  double spread;  // (third - first quartile) / median
};

// Repeats f until a sample lasts 2 ms; nine samples.
template <class F>
Timing Time(F&& f) {
  f();
  double t0 = NowSeconds();
  f();
  const int repeats = std::max(1, static_cast<int>(2e-3 / std::max(1e-9, NowSeconds() - t0)));
  std::vector<double> samples;
  for (int s = 0; s < 9; ++s) {
    t0 = NowSeconds();
    for (int i = 0; i < repeats; ++i) f();
    samples.push_back((NowSeconds() - t0) / repeats);
  }
  std::sort(samples.begin(), samples.end());
  return {samples[4], (samples[6] - samples[2]) / samples[4]};
}

struct LatentPages {
  std::vector<AlignedBuffer> buffers;
  std::vector<const void*> pointers;
  LatentPages(Rng& rng, int64_t keys, int64_t width) {
    for (int64_t p = 0; p * kMlaPageTokens < keys; ++p) {
      buffers.emplace_back(static_cast<size_t>(kMlaPageTokens * width * 2));
      for (int64_t i = 0; i < kMlaPageTokens * width; ++i) {
        buffers.back().as<bf16>()[i] = ToBf16(static_cast<float>(2 * rng.Uniform() - 1));
      }
    }
    for (const AlignedBuffer& b : buffers) pointers.push_back(b.data());
  }
};

BenchResult Rate(const std::string& name, double flop, const Timing& t) {
  return {name, flop / t.seconds * 1e-9, "GFLOP/s", 0, 0, t.spread};
}

BenchResult DepthAttentionBench(Context& ctx, const std::string& name, int64_t rows) {
  Rng rng(1);
  const int64_t D = 7168;
  std::vector<std::vector<float>> blocks;
  std::vector<const float*> sources;
  for (int s = 0; s < 8; ++s) blocks.push_back(Random(rng, rows * D));
  for (const auto& b : blocks) sources.push_back(b.data());
  const auto partial = Random(rng, rows * D), direction = Random(rng, D);
  std::vector<float> out(static_cast<size_t>(rows * D));
  const Timing t = Time([&] {
    DepthAttentionNorm(ctx, sources, partial.data(), direction.data(), 1e-5f, rows, D, direction.data(), 1e-5f,
                       out.data());
  });
  return {name, t.seconds * 1e6 / static_cast<double>(rows), "us/row", 0, 0, t.spread};
}

BenchResult SituBench(Context& ctx, const std::string& name) {
  Rng rng(5);
  const int64_t n = 16 * 3072;
  const auto gate = Random(rng, n), up = Random(rng, n);
  std::vector<float> out(static_cast<size_t>(n));
  const Timing t = Time([&] { Situ(ctx, gate.data(), up.data(), 4, 25, n, out.data()); });
  return {name, t.seconds * 1e6, "us", 0, 0, t.spread};
}

BenchResult RouterBench(Context& ctx, const std::string& name) {
  Rng rng(2);
  const RouterShape shape = {.experts = 896, .top_k = 16};
  const int64_t rows = 8;
  const auto logits = Random(rng, rows * 896), bias = Random(rng, 896);
  std::vector<int32_t> ids(rows * 16);
  std::vector<float> weights(rows * 16);
  const Timing t =
      Time([&] { Route(ctx, shape, logits.data(), bias.data(), rows, ids.data(), weights.data(), nullptr, nullptr); });
  return {name, t.seconds * 1e6 / rows, "us/row", 0, 0, t.spread};
}

BenchResult DecodeBench(Context& ctx, const std::string& name, int heads, int64_t keys) {
  Rng rng(3);
  const MlaShape shape = {.heads = heads, .nope = 128, .rope = 64, .v_dim = 128, .rank = 512, .scale = 0.07f};
  const LatentPages pages(rng, keys, 576);
  const auto q = Random(rng, heads * 576);
  std::vector<float> out(static_cast<size_t>(heads) * 512);
  const MlaSegment segment = {{pages.pointers.data(), true}, 0, 1, keys - 1};
  const Timing t = Time([&] { MlaDecode(ctx, shape, {&segment, 1}, q.data(), out.data()); });
  return Rate(name, 2.0 * static_cast<double>(keys) * heads * (576 + 512), t);
}

// Counted: keys and values expanded once, and the causal half of scores and values.
BenchResult PrefillBench(Context& ctx, const std::string& name, int64_t rows, int64_t position) {
  Rng rng(4);
  const MlaShape shape = {.heads = 16, .nope = 128, .rope = 64, .v_dim = 128, .rank = 512, .scale = 0.07f};
  std::vector<bf16> kv_b;
  for (const float v : Random(rng, 16 * 256 * 512)) kv_b.push_back(ToBf16(v * 0.05f));
  const LatentPages pages(rng, rows + position, 576);
  const auto q = Random(rng, rows * 16 * 192);
  std::vector<float> out(static_cast<size_t>(rows * 16 * 128));
  const MlaSegment segment = {{pages.pointers.data(), true}, 0, rows, position};
  const Timing t = Time([&] { MlaPrefill(ctx, shape, {&segment, 1}, q.data(), {kv_b.data(), true}, out.data()); });
  const double n = static_cast<double>(rows), at = static_cast<double>(position), seen = n * at + n * (n + 1) / 2;
  return Rate(name, 16 * 2.0 * ((n + at) * 512 * 256 + seen * (192 + 128)), t);
}

}  // namespace

std::vector<std::string> AttnBenchNames() {
  return {"depth_attention/1row",       "depth_attention/64rows", "situ/16x3072",           "router/896top16",
          "mla_decode/96heads/16k",     "mla_decode/96heads/256", "mla_decode/16heads/16k", "mla_prefill/512rows/at0",
          "mla_prefill/512rows/at4096", "mla_prefill/64rows/at0"};
}

BenchResult RunAttnBench(Context& ctx, std::string_view name_view) {
  const std::string name(name_view);
  if (name == "depth_attention/1row") return DepthAttentionBench(ctx, name, 1);
  if (name == "depth_attention/64rows") return DepthAttentionBench(ctx, name, 64);
  if (name == "situ/16x3072") return SituBench(ctx, name);
  if (name == "router/896top16") return RouterBench(ctx, name);
  if (name == "mla_decode/96heads/16k") return DecodeBench(ctx, name, 96, 16384);
  if (name == "mla_decode/96heads/256") return DecodeBench(ctx, name, 96, 256);
  if (name == "mla_decode/16heads/16k") return DecodeBench(ctx, name, 16, 16384);
  if (name == "mla_prefill/512rows/at0") return PrefillBench(ctx, name, 512, 0);
  if (name == "mla_prefill/512rows/at4096") return PrefillBench(ctx, name, 512, 4096);
  if (name == "mla_prefill/64rows/at0") return PrefillBench(ctx, name, 64, 0);
  return {name, -1, "no such bench"};
}

}  // namespace kestrel::bench
