// kestrel init: a fresh model in the published layout.
#include <fmt/format.h>

#include <algorithm>

#include "apps/commands.h"
#include "apps/common.h"
#include "kestrel/base/cpu.h"
#include "kestrel/model/init.h"
#include "kestrel/model/presets.h"

namespace kestrel {
namespace {

struct Options {
  std::string out, preset;
  std::vector<std::string> settings;
  uint64_t seed = 0;
  int threads = 0;
};

Status RunInit(const Options& o) {
  KESTREL_ASSIGN_OR_RETURN(ModelConfig config, PresetConfig(o.preset));
  for (const std::string& s : o.settings) KESTREL_RETURN_IF_ERROR(ApplySetting(config, s));
  ThreadPool pool(o.threads > 0 ? o.threads : PhysicalCores());
  Progress progress("writing", 1);
  return InitCheckpoint(pool, o.out, config, o.seed, [&](double done, double total) { progress.Update(done / total); });
}

std::string PresetHelp() {
  std::string text = "Presets:\n";
  for (const std::string& name : PresetNames()) text += fmt::format("  {:<12}{}\n", name, PresetSummary(name));
  text += "\nSettings:\n ";
  for (const std::string& key : SettingKeys()) text += " " + key;
  return text + "\n\nExample: kestrel init models/slice --preset k3-slice --set layers=5 experts=32";
}

}  // namespace

void AddInitCommand(CLI::App& root, int& exit_code) {
  auto o = std::make_shared<Options>();
  CLI::App* app = root.add_subcommand("init", "Write a model with random initial weights");
  app->add_option("OUT", o->out, "the folder to make; must not hold anything yet")->required();
  app->add_option("--preset", o->preset, "which sizes, see below")->required()->check(CLI::IsMember(PresetNames()));
  app->add_option("--set", o->settings, "change sizes: key=value, several at once or repeated");
  app->add_option("--seed", o->seed, "the same seed gives the same bytes")->capture_default_str();
  app->add_option("--threads", o->threads, "threads to use (default: the physical cores)")->check(CLI::Range(1, 1024));
  app->footer(PresetHelp());
  app->callback([o, &exit_code] {
    const Status status = RunInit(*o);
    exit_code = status ? 0 : Fail(status.error());
  });
}

}  // namespace kestrel
