// kestrel inspect: what a model folder holds and what running it costs, as tables of 80 columns or as JSON.
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/common.h"
#include "kestrel/model/inspect.h"

namespace kestrel {
namespace {

using nlohmann::ordered_json;

struct Options {
  std::string model;
  int64_t context = 0;  // the default of Inspect
  bool json = false;
};

// 1 560 860 324 864 bytes -> "1.561 TB"; powers of ten, four digits at most.
std::string Scaled(double x, std::span<const char* const> units) {
  size_t unit = 0;
  while (x >= 999.95 && unit + 1 < units.size()) x /= 1000, ++unit;
  if (unit == 0) return fmt::format("{:.0f} {}", x, units[0]);
  return fmt::format("{:.{}f} {}", x, x < 10 ? 3 : x < 100 ? 2 : 1, units[unit]);
}
std::string Bytes(uint64_t x) {
  constexpr const char* kUnits[] = {"B ", "kB", "MB", "GB", "TB", "PB"};
  return Scaled(static_cast<double>(x), kUnits);
}
std::string Count(int64_t x) {
  constexpr const char* kUnits[] = {" ", "K", "M", "B", "T"};
  return Scaled(static_cast<double>(x), kUnits);
}

std::string Row(std::string_view name, const TensorTotals& t) {
  return fmt::format("  {:<12} {:>9} {:>13} {:>13} {:>13} {:>13}\n", name, t.tensors, Count(t.parameters),
                     Count(t.active), Bytes(t.bytes), Bytes(t.read_bytes));
}

std::string Head(const Options& o, const Inspection& it) {
  const ModelConfig& c = it.config;
  std::string out =
      fmt::format("{}\n  {} config, {} layers, hidden {}, vocabulary {}\n", o.model,
                  c.nested ? "nested (K3)" : "flat (Kimi Linear)", c.num_hidden_layers, c.hidden_size, c.vocab_size);
  switch (it.source) {
    case Inspection::Source::kHeaders:
      return out + fmt::format("  sizes from the headers of {} file{}\n", it.shards, it.shards == 1 ? "" : "s");
    case Inspection::Source::kIndex:
      return out + fmt::format("  names from the index, sizes from the config: {} of {} shards are absent\n",
                               it.shards_absent, it.shards);
    default:
      return out + "  sizes from the config: there are no weights here\n";
  }
}

std::string Parts(const Inspection& it) {
  std::string out = fmt::format("\n  {:<12} {:>9} {:>13} {:>13} {:>13} {:>13}\n", "component", "tensors", "parameters",
                                "active/token", "stored", "read/token");
  for (const ComponentTotals& part : it.components) out += Row(Name(part.component), part.totals);
  out += Row("text model", it.text);
  if (it.vision.tensors > 0) out += Row("vision", it.vision) + "  (vision is recognised and left alone)\n";
  if (it.expert.tensors > 0) {
    out += fmt::format("  one expert: {} parameters, {} bytes\n", it.expert.parameters, it.expert.bytes);
  }
  out += fmt::format("  all tensors: {}, {} bytes ({})\n", it.tensors, it.bytes, Bytes(it.bytes));
  if (it.declared_bytes > 0 && it.declared_bytes != it.bytes) {
    out += fmt::format("  the index declares {} bytes: {} do not fit\n", it.declared_bytes,
                       it.declared_bytes > it.bytes ? "the sizes above" : "its metadata");
  }
  return out;
}

std::string Names(std::string_view what, const NameList& names) {
  if (names.count == 0) return "";
  std::string out = fmt::format("\n  {}: {}\n", what, names.count);
  for (const std::string& name : names.first) out += fmt::format("    {}\n", name);
  if (names.count > static_cast<int64_t>(names.first.size())) out += "    ...\n";
  return out;
}

// One line a block of Attention Residuals, or twelve layers.
std::string LayerMap(const Inspection& it) {
  const auto count = static_cast<int64_t>(it.layers.size());
  const int64_t block = it.config.attn_res_block_size, step = block > 0 ? std::min<int64_t>(block, 32) : 12;
  std::string out = "\n  layers (K KDA, M latent attention, d before a dense feed-forward, else MoE)\n";
  for (int64_t first = 0; first < count; first += step) {
    const int64_t end = std::min(first + step, count);
    std::string marks;
    for (int64_t i = first; i < end; ++i) {
      const LayerSummary& layer = it.layers[static_cast<size_t>(i)];
      if (i > first && (i - first) % 4 == 0) marks += "  ";
      marks += fmt::format("{}{}", layer.kda ? 'K' : 'M', layer.moe ? ' ' : 'd');
    }
    out += fmt::format("  {:>4} - {:<4} {}\n", first, end - 1, marks);
  }
  return out;
}

std::string Costs(const Inspection& it) {
  const StateCosts& s = it.state;
  const auto line = [](std::string_view what, uint64_t bytes) {
    return fmt::format("  {:<44} {:>18} B  {:>10}\n", what, bytes, Bytes(bytes));
  };
  return "\n  a sequence\n" + line("KDA state, float32 [H, d, d]", s.kda_matrices) +
         line("  as kept, with the rows since its last fold", s.kda_kept) + line("convolution tails", s.conv_kept) +
         line("independent of the context, in all", s.fixed_kept) + line("latent, a token", s.latent_per_token) +
         line(fmt::format("latent, {} tokens in pages of {}", s.context, s.page_tokens), s.latent_kept) +
         line("in all", s.total) + "\n  read to decode one token\n" + line("weights", it.text.read_bytes) +
         line("state", s.fixed_kept) +
         line(fmt::format("latent of {} tokens", s.context), it.read_per_token - it.text.read_bytes - s.fixed_kept) +
         line("in all", it.read_per_token);
}

std::string Human(const Options& o, const Inspection& it) {
  return Head(o, it) + Parts(it) + Names("missing from the files", it.missing) +
         Names("in the files, used by nothing", it.unknown) + LayerMap(it) + Costs(it);
}

ordered_json Json(const TensorTotals& t) {
  return {{"tensors", t.tensors},
          {"parameters", t.parameters},
          {"active", t.active},
          {"bytes", t.bytes},
          {"read_bytes_per_token", t.read_bytes}};
}
ordered_json Json(const NameList& names) { return {{"count", names.count}, {"first", names.first}}; }

ordered_json Json(const StateCosts& s) {
  return {{"context", s.context},         {"kda_matrices_bytes", s.kda_matrices},
          {"kda_kept_bytes", s.kda_kept}, {"conv_kept_bytes", s.conv_kept},
          {"fixed_bytes", s.fixed_kept},  {"latent_bytes_per_token", s.latent_per_token},
          {"page_tokens", s.page_tokens}, {"latent_bytes", s.latent_kept},
          {"total_bytes", s.total}};
}

ordered_json Json(const Inspection& it) {
  constexpr const char* kSources[] = {"headers", "index", "config"};
  ordered_json components = ordered_json::object(), layers = ordered_json::array();
  for (const ComponentTotals& part : it.components) components[Name(part.component)] = Json(part.totals);
  for (size_t i = 0; i < it.layers.size(); ++i) {
    const LayerSummary& layer = it.layers[i];
    ordered_json x = {{"layer", i}, {"mixer", layer.kda ? "kda" : "mla"}, {"ffn", layer.moe ? "moe" : "dense"}};
    x["block"] = layer.block >= 0 ? ordered_json(layer.block) : ordered_json(nullptr);
    x.update(Json(layer.totals));
    layers.push_back(std::move(x));
  }
  return {{"sizes_from", kSources[static_cast<size_t>(it.source)]},
          {"shards", it.shards},
          {"shards_absent", it.shards_absent},
          {"tensors", it.tensors},
          {"bytes", it.bytes},
          {"declared_bytes", it.declared_bytes},
          {"parameters", it.text.parameters},
          {"active_parameters", it.text.active},
          {"text", Json(it.text)},
          {"components", components},
          {"expert", Json(it.expert)},
          {"vision", Json(it.vision)},
          {"missing", Json(it.missing)},
          {"unknown", Json(it.unknown)},
          {"state", Json(it.state)},
          {"read_bytes_per_token", it.read_per_token},
          {"layers", layers}};
}

Status Run(const Options& o) {
  KESTREL_ASSIGN_OR_RETURN(const Inspection it, Inspect(o.model, o.context));
  return WriteOut(o.json ? Json(it).dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n" : Human(o, it));
}

}  // namespace

void AddInspectCommand(CLI::App& root, int& exit_code) {
  auto o = std::make_shared<Options>();
  CLI::App* app = root.add_subcommand("inspect", "What a model folder holds, and what running it costs");
  app->add_option("MODEL", o->model, "model folder; config.json alone is enough")->required();
  app->add_option("--context", o->context,
                  "tokens of context to size the state for (default: 32768, or the most the model takes)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app->add_flag("--json", o->json, "print one JSON object");
  app->callback([o, &exit_code] {
    const Status status = Run(*o);
    exit_code = status ? 0 : Fail(status.error());
  });
}

}  // namespace kestrel
