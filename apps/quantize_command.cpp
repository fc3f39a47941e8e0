// kestrel quantize: routed experts to MXFP4.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/common.h"
#include "kestrel/base/cpu.h"
#include "kestrel/model/quantize.h"

namespace kestrel {
namespace {

struct Options {
  std::string in, out, experts = "mxfp4";
  int threads = 0;
  bool json = false;
};

std::string Shown(const Options& o, const QuantizeReport& r) {
  if (o.json) {
    const nlohmann::ordered_json out = {{"matrices", r.matrices},
                                        {"bytes_before", r.bytes_before},
                                        {"bytes_after", r.bytes_after},
                                        {"relative_error", r.relative_error}};
    return out.dump() + "\n";
  }
  return fmt::format("{}: {} expert matrices to MXFP4, {:.3f} GB to {:.3f} GB, relative error {:.4f}\n", o.out,
                     r.matrices, static_cast<double>(r.bytes_before) * 1e-9, static_cast<double>(r.bytes_after) * 1e-9,
                     r.relative_error);
}

Status RunQuantize(const Options& o) {
  ThreadPool pool(o.threads > 0 ? o.threads : PhysicalCores());
  Result<QuantizeReport> report = [&] {
    Progress progress("quantizing", 1);
    return QuantizeExperts(pool, o.in, o.out, [&](double done, double total) { progress.Update(done / total); });
  }();
  if (!report) return tl::unexpected<Error>(report.error());
  return WriteOut(Shown(o, *report));
}

}  // namespace

void AddQuantizeCommand(CLI::App& root, int& exit_code) {
  auto o = std::make_shared<Options>();
  CLI::App* app = root.add_subcommand("quantize", "Turn the routed experts of a model into MXFP4");
  app->add_option("IN", o->in, "model folder with BF16 or F32 experts")->required();
  app->add_option("OUT", o->out, "the folder to make; must not hold anything yet")->required();
  app->add_option("--experts", o->experts, "what the experts become")
      ->check(CLI::IsMember({"mxfp4"}))
      ->capture_default_str();
  app->add_option("--threads", o->threads, "threads to use (default: the physical cores)")->check(CLI::Range(1, 1024));
  app->add_flag("--json", o->json, "print one JSON object: matrices, bytes_before, bytes_after, relative_error");
  app->footer(
      "Per group of 32 weights the better of two neighbouring scales is kept. All else is copied byte for byte.");
  app->callback([o, &exit_code] {
    const Status status = RunQuantize(*o);
    exit_code = status ? 0 : Fail(status.error());
  });
}

}  // namespace kestrel
