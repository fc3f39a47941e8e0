// kestrel generate: a prompt in, text out.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/commands.h"
#include "apps/common.h"
#include "kestrel/base/clock.h"
#include "kestrel/engine/generate.h"

namespace kestrel {
namespace {

struct Options {
  std::string model, save_state, load_state;
  std::optional<std::string> prompt, file, ids;  // exactly one
  GenerateOptions generate;
  RuntimeOptions runtime;
  bool json = false;
};

Result<std::vector<int32_t>> PromptIds(const Options& o, const Tokenizer* tokenizer) {
  if (o.ids) return ParseIds(*o.ids);
  if (tokenizer == nullptr) {
    return Err(ErrorCode::kNotFound, "[apps.generate] {}: no tiktoken.model, so text can't be read; give --ids",
               o.model);
  }
  std::string text = o.prompt.value_or("");
  if (o.file) {
    KESTREL_ASSIGN_OR_RETURN(text, ReadTextFile(*o.file));
  }
  return tokenizer->Encode(text, /*allow_special=*/true);
}

std::string ToJsonText(const std::vector<int32_t>& prompt, const GenerateResult& r, double load_s) {
  const auto per_second = [](size_t n, double s) { return s > 0 ? static_cast<double>(n) / s : 0.0; };
  const size_t steps = r.ids.empty() ? 0 : r.ids.size() - 1;  // the first token comes out of the prefill
  const nlohmann::ordered_json timing = {{"load_s", load_s},
                                         {"prefill_s", r.prefill_s},
                                         {"decode_s", r.decode_s},
                                         {"prefill_tps", per_second(prompt.size(), r.prefill_s)},
                                         {"decode_tps", per_second(steps, r.decode_s)}};
  const nlohmann::ordered_json out = {
      {"prompt_ids", prompt}, {"ids", r.ids}, {"text", r.text}, {"finish_reason", r.finish_reason}, {"timing", timing}};
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Status RunGenerate(Options& o) {
  Runtime runtime(o.runtime);
  Context& ctx = runtime.context();
  const double start = NowSeconds();
  std::optional<Tokenizer> tokenizer;
  if (std::filesystem::exists(std::filesystem::path(o.model) / "tiktoken.model")) {
    KESTREL_ASSIGN_OR_RETURN(tokenizer, Tokenizer::Load(o.model));
  }
  const Tokenizer* text = tokenizer ? &*tokenizer : nullptr;
  KESTREL_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, PromptIds(o, text));
  if (prompt.empty()) {
    return Err(ErrorCode::kInvalidArgument, "[apps.generate] prompt: got no tokens, want at least one");
  }
  std::unique_ptr<Model> model;
  {
    Progress progress("loading", 1);
    KESTREL_ASSIGN_OR_RETURN(
        model, Model::Load(ctx, o.model, [&](double done, double total) { progress.Update(done / total); }));
  }
  const double load_s = NowSeconds() - start;
  auto loaded = o.load_state.empty() ? Result<SequenceState>(model->NewState()) : model->LoadState(o.load_state);
  if (!loaded) return tl::unexpected<Error>(loaded.error());
  SequenceState& state = *loaded;

  o.generate.feed_last = !o.save_state.empty();
  Progress progress("prefill", static_cast<double>(prompt.size()));
  const auto shown = [&](int32_t id, std::string_view piece) {
    if (o.json) return;
    if (text == nullptr && id >= 0) {
      (void)WriteOut(fmt::format("{} ", id));
    } else if (!piece.empty()) {
      (void)WriteOut(piece);
    }
  };
  KESTREL_ASSIGN_OR_RETURN(const GenerateResult result,
                           Generate(ctx, *model, text, prompt, state, o.generate, shown,
                                    [&](int64_t done) { progress.Update(static_cast<double>(done)); }));
  if (!o.save_state.empty()) KESTREL_RETURN_IF_ERROR(state.Save(o.save_state));
  return WriteOut(o.json ? ToJsonText(prompt, result, load_s) : "\n");
}

}  // namespace

void AddGenerateCommand(CLI::App& root, int& exit_code) {
  auto o = std::make_shared<Options>();
  CLI::App* app = root.add_subcommand("generate", "Continue a prompt; streams text");
  app->add_option("MODEL", o->model, "model folder")->required();
  auto* prompt = app->add_option_group("prompt", "exactly one of");
  prompt->add_option("-p,--prompt", o->prompt, "the prompt as text; special tokens are recognised");
  prompt->add_option("-f,--file", o->file, "the prompt from a file, - for standard input");
  prompt->add_option("--ids", o->ids, "the prompt as token ids, e.g. 1,2,3");
  prompt->require_option(1);
  GenerateOptions& g = o->generate;
  app->add_option("-n,--max-tokens", g.max_tokens, "tokens to generate at most")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24));
  app->add_option("--temperature", g.sampling.temperature, "0 picks the best token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0));
  app->add_option("--top-p", g.sampling.top_p, "sample from the best tokens of this total probability")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--top-k", g.sampling.top_k, "sample from the k best tokens; 0 is all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app->add_option("--min-p", g.sampling.min_p, "drop tokens below this share of the best one's probability")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app->add_option("--seed", g.sampling.seed, "the same seed gives the same text")->capture_default_str();
  app->add_option("--stop", g.stop, "end before this text (may be repeated)");
  app->add_flag("--ignore-eos", g.ignore_eos, "go on past the end token");
  app->add_option("--save-state", o->save_state, "write the sequence's state to a file at the end");
  app->add_option("--load-state", o->load_state, "start from a saved state; the prompt follows it");
  app->add_flag("--json", o->json, "print one JSON object at the end instead of text");
  o->runtime.AddTo(app);
  app->callback([o, &exit_code] {
    const Status status = RunGenerate(*o);
    exit_code = status ? 0 : Fail(status.error());
  });
}

}  // namespace kestrel
