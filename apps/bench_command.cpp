// kestrel bench: speed, each number beside the roof that the same run measured.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/common.h"
#include "kestrel/base/clock.h"
#ifdef KESTREL_HAS_BENCH
#include "bench/attn_bench.h"
#include "bench/kda_bench.h"
#include "bench/matmul_bench.h"
#include "bench/median.h"
#include "bench/model_bench.h"
#include "bench/onednn_peak.h"
#include "bench/roofline.h"
#endif
#include "kestrel/model/init.h"

namespace kestrel {

#ifdef KESTREL_HAS_BENCH
namespace {

using bench::BenchResult;

struct Options {
  std::string model;
  RuntimeOptions runtime;
  bool json = false;
};

// Without a model: `mid`, made once and kept, since making 1.7 GB takes longer than measuring it.
Result<std::string> ModelOrMid(const std::string& given) {
  if (!given.empty()) return given;
  namespace fs = std::filesystem;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const fs::path folder = fs::path(cache != nullptr  ? cache
                                   : home != nullptr ? std::string(home) + "/.cache"
                                                     : std::string("/tmp")) /
                          "kestrel" / "mid";
  if (!fs::exists(folder / "config.json")) {
    fmt::print(stderr, "making the model `mid` in {} (1.7 GB, kept for later runs)\n", folder.string());
    std::error_code error;
    fs::create_directories(folder.parent_path(), error);
    KESTREL_RETURN_IF_ERROR(InitPreset(folder.string(), "mid"));
  }
  return folder.string();
}

void Print(const std::vector<BenchResult>& results, const nlohmann::ordered_json& machine, bool json) {
  if (!json) {
    fmt::print("{:<24}{:>12} {:<10}{:>12}{:>9}{:>9}\n", "", "value", "", "roof", "ratio", "spread");
    for (const BenchResult& r : results) {
      fmt::print("{:<24}{:>12.2f} {:<10}{:>12.2f}{:>8.1f}%{:>8.1f}%\n", r.name, r.value, r.unit, r.roof, r.ratio * 100,
                 r.spread * 100);
    }
    return;
  }
  nlohmann::ordered_json out = {{"machine", machine}, {"results", nlohmann::ordered_json::array()}};
  for (const BenchResult& r : results) {
    out["results"].push_back({{"name", r.name},
                              {"value", r.value},
                              {"unit", r.unit},
                              {"roof", r.roof},
                              {"ratio", r.ratio},
                              {"spread", r.spread}});
  }
  fmt::print("{}\n", out.dump(1));
}

nlohmann::ordered_json Machine(Context& ctx) {
  return {{"cpu", CpuModelName()},
          {"isa", Name(ctx.isa)},
          {"threads", ctx.pool.size()},
          {"version", KESTREL_VERSION},
          {"compiler", fmt::format("g++ {}", __VERSION__)}};
}

// G: oneDNN's bfloat16 product 128 x 4096 x 4096, all cores; 0 where this build found no oneDNN.
double OneDnnGflops() {
  constexpr int64_t kRows = 128, kWide = 4096;
  bench::OneDnnMatMul g(kRows, kWide, kWide);
  if (!g.available()) return 0;
  std::vector<double> seconds(31);
  for (double& s : seconds) s = g.Seconds();
  return 2e-9 * kRows * kWide * kWide / bench::Median(seconds);
}

std::vector<BenchResult> Roofline(int threads) {
  std::vector<BenchResult> out;
  for (int t = 1; t <= threads; ++t) {
    const double gbs = bench::ReadBandwidth(t);
    out.push_back({fmt::format("read_{}t", t), gbs, "GB/s", gbs, 1});
  }
  if (const double gflops = OneDnnGflops(); gflops > 0)
    out.push_back({"onednn_bf16_gemm", gflops, "GFLOP/s", gflops, 1});
  return out;
}

std::vector<BenchResult> Kernels(Context& ctx) {
  std::vector<BenchResult> out;
  const auto names = bench::MatMulBenchNames();
  Progress progress("kernels", static_cast<double>(names.size()) + 2);
  for (const std::string& name : names) {
    out.push_back(bench::RunMatMulBench(name));
    progress.Update(static_cast<double>(out.size()));
  }
  const double read = bench::ReadBandwidth(ctx.pool.size()) * 1e9;
  for (const BenchResult& r : bench::BenchKda(ctx, read)) out.push_back(r);
  for (const std::string& name : bench::AttnBenchNames()) out.push_back(bench::RunAttnBench(ctx, name));
  return out;
}

// The median of three: the first load may pay for memory that the machine has never handed out before.
Result<std::unique_ptr<Model>> LoadTimed(Context& ctx, const std::string& folder, BenchResult* load) {
  constexpr int kLoads = 3;
  std::vector<double> seconds;
  std::unique_ptr<Model> model;
  for (int i = 0; i < kLoads; ++i) {
    model.reset();
    const double start = NowSeconds();
    KESTREL_ASSIGN_OR_RETURN(model, Model::Load(ctx, folder, {}));
    seconds.push_back(NowSeconds() - start);
  }
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  *load = {"load", bench::Median(seconds), "s"};
  load->spread = (*most - *least) / load->value;
  return model;
}

Result<std::vector<BenchResult>> EndToEnd(Context& ctx, const std::string& given, bool decode) {
  KESTREL_ASSIGN_OR_RETURN(const std::string folder, ModelOrMid(given));
  BenchResult load;
  KESTREL_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, LoadTimed(ctx, folder, &load));
  KESTREL_ASSIGN_OR_RETURN(const BenchResult memory, bench::BenchPeakMemory(ctx, *model));
  KESTREL_ASSIGN_OR_RETURN(std::vector<BenchResult> out,
                           decode ? bench::BenchDecode(ctx, *model) : bench::BenchPrefill(ctx, *model));
  out.push_back(memory);
  out.push_back(load);
  return out;
}

}  // namespace

void AddBenchCommand(CLI::App& root, int& exit_code) {
  auto o = std::make_shared<Options>();
  CLI::App* app = root.add_subcommand("bench", "Measure speed against the machine's own roofs");
  app->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, bool model, auto run) {
    CLI::App* sub = app->add_subcommand(name, help);
    if (model) sub->add_option("MODEL", o->model, "model folder (default: the preset mid, made on first use)");
    sub->add_flag("--json", o->json, "{machine, results[{name, value, unit, roof, ratio}]}");
    o->runtime.AddTo(sub);
    sub->callback([o, run, &exit_code] {
      Runtime runtime(o->runtime);
      const Result<std::vector<BenchResult>> results = run(runtime.context(), *o);
      if (!results) {
        exit_code = Fail(results.error());
        return;
      }
      Print(*results, Machine(runtime.context()), o->json);
    });
  };
  using R = Result<std::vector<BenchResult>>;
  add("kernels", "matmul, KDA and attention kernels", false,
      [](Context& ctx, const Options&) -> R { return Kernels(ctx); });
  add("roofline", "read bandwidth and oneDNN's bfloat16 GEMM", false,
      [](Context& ctx, const Options&) -> R { return Roofline(ctx.pool.size()); });
  add("decode", "tokens a second at batch 1 and 8, and the share of AttnRes", true,
      [](Context& ctx, const Options& opts) { return EndToEnd(ctx, opts.model, true); });
  add("prefill", "tokens a second of a prompt of 512", true,
      [](Context& ctx, const Options& opts) { return EndToEnd(ctx, opts.model, false); });
}

#else

void AddBenchCommand(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand("bench", "Measure speed (this build has KESTREL_BENCH=OFF)");
  app->allow_extras();
  app->callback([&exit_code] {
    exit_code = Fail({ErrorCode::kUnsupported, "[apps.bench] this build: got KESTREL_BENCH=OFF, want ON"});
  });
}

#endif

}  // namespace kestrel
