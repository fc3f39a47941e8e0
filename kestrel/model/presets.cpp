#include "kestrel/model/presets.h"

#include <charconv>
#include <functional>
#include <limits>

namespace kestrel {
namespace {

// Three KDA layers to one MLA layer, and MLA last, as in the release (93 layers: MLA at 4, 8, ..., 92 and 93).
void SetLayers(ModelConfig& c, int64_t layers) {
  c.num_hidden_layers = layers;
  c.is_kda.assign(static_cast<size_t>(layers), true);
  for (int64_t i = 0; i < layers; ++i) c.is_kda[static_cast<size_t>(i)] = i % 4 != 3 && i != layers - 1;
}

// The last 256 ids are special, in the release's order.
void SetVocabulary(ModelConfig& c, int64_t size) {
  c.vocab_size = size;
  c.bos_token_id = size - 256;
  c.eos_token_ids = {size - 254};
  c.pad_token_id = size - 1;
}

void SetHeads(ModelConfig& c, int64_t heads) { c.kda.heads = c.num_attention_heads = heads; }
void SetHeadDim(ModelConfig& c, int64_t dim) { c.kda.head_dim = c.qk_nope_head_dim = c.v_head_dim = dim; }
void SetLatent(ModelConfig& c, int64_t size) {
  c.latent_size = size;
  c.latent_norm = size > 0;
}

// What all K3 models share: the release's shape without its sizes.
ModelConfig K3Family() {
  ModelConfig c;
  c.nested = true;
  c.kda.gate_lower_bound = -5.0;
  c.kda.full_rank_gate = true;
  c.mla_output_gate = true;
  c.activation = {.situ = true, .beta = 4.0, .linear_beta = 25.0};
  c.first_k_dense_replace = 1;
  c.shared_experts = 2;
  c.experts_mxfp4 = true;
  return c;
}

// Trains on a laptop: 20.9 M parameters. bfloat16 experts, so that it can be trained, then quantized.
ModelConfig Nano() {
  ModelConfig c = K3Family();
  SetLayers(c, 8);
  SetVocabulary(c, 8192);
  SetHeads(c, 4);
  SetHeadDim(c, 64);
  SetLatent(c, 128);
  c.hidden_size = 256;
  c.q_lora_rank = 128;
  c.kv_lora_rank = 128;
  c.qk_rope_head_dim = 32;
  c.intermediate_size = 1024;
  c.num_experts = 32;
  c.experts_per_token = 4;
  c.moe_intermediate_size = 128;
  c.attn_res_block_size = 2;
  c.max_position_embeddings = 8192;
  c.experts_mxfp4 = false;
  return c;
}

// Every part of the architecture in half a megabyte.
ModelConfig Micro() {
  ModelConfig c = K3Family();
  SetLayers(c, 5);
  SetVocabulary(c, 512);
  SetHeads(c, 2);
  SetHeadDim(c, 32);
  SetLatent(c, 32);
  c.hidden_size = 64;
  c.q_lora_rank = 32;
  c.kv_lora_rank = 32;
  c.qk_rope_head_dim = 16;
  c.intermediate_size = 128;
  c.num_experts = 8;
  c.experts_per_token = 2;
  c.moe_intermediate_size = 32;
  c.attn_res_block_size = 2;
  c.max_position_embeddings = 4096;
  return c;
}

// Large enough that memory bandwidth decides, small enough for any desk.
ModelConfig Mid() {
  ModelConfig c = K3Family();
  SetLayers(c, 9);
  SetVocabulary(c, 32768);
  SetHeads(c, 16);
  SetHeadDim(c, 128);
  SetLatent(c, 1024);
  c.hidden_size = 2048;
  c.q_lora_rank = 512;
  c.kv_lora_rank = 512;
  c.qk_rope_head_dim = 64;
  c.intermediate_size = 4096;
  c.num_experts = 64;
  c.experts_per_token = 8;
  c.moe_intermediate_size = 1024;
  c.attn_res_block_size = 4;
  return c;
}

// mid's sizes in Kimi Linear's shape. Experts read the full width in bfloat16, so their own width is halved: 3.9 GB.
ModelConfig LinearMid() {
  ModelConfig c = Mid();
  c.nested = false;
  c.kda.gate_lower_bound.reset();
  c.kda.full_rank_gate = false;
  c.mla_output_gate = false;
  c.activation = {};
  c.q_lora_rank = 0;
  SetLatent(c, 0);
  c.moe_intermediate_size = 512;
  c.routed_scaling_factor = 2.446;
  c.attn_res_block_size = 0;
  c.experts_mxfp4 = false;
  return c;
}

// A few layers and experts of the release at its true widths.
ModelConfig K3Slice() {
  ModelConfig c = K3Family();
  SetLayers(c, 4);
  SetVocabulary(c, 163840);
  SetHeads(c, 96);
  SetHeadDim(c, 128);
  SetLatent(c, 3584);
  c.hidden_size = 7168;
  c.q_lora_rank = 1536;
  c.kv_lora_rank = 512;
  c.qk_rope_head_dim = 64;
  c.intermediate_size = 33792;
  c.num_experts = 16;  // of 896
  c.experts_per_token = 16;
  c.moe_intermediate_size = 3072;
  c.attn_res_block_size = 12;
  return c;
}

struct Preset {
  std::string_view name, summary;
  ModelConfig (*make)();
};
constexpr Preset kPresets[] = {
    {"micro", "every part of the architecture in half a megabyte, for tests and first steps", Micro},
    {"nano", "20.9 M parameters, bf16 experts, for training on a laptop", Nano},
    {"mid", "9 layers, hidden 2048, 64 MXFP4 experts, 1.8 GB: what the benchmarks run", Mid},
    {"linear-mid", "the same sizes in Kimi Linear's shape, bf16 experts, 3.9 GB", LinearMid},
    {"k3-slice", "the release's true widths, 4 layers, 16 experts, 11 GB; --set layers, experts", K3Slice},
};

const Preset* FindPreset(std::string_view name) {
  for (const Preset& p : kPresets) {
    if (p.name == name) return &p;
  }
  return nullptr;
}

std::string Joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : ", ") + w;
  return out;
}

// A whole number in [low, high] and where it goes.
struct IntegerSetting {
  std::string_view key;
  int64_t low, high;
  void (*set)(ModelConfig&, int64_t);
};
constexpr int64_t kMaxWidth = int64_t{1} << 24;  // as ParseModelConfig has it
constexpr IntegerSetting kIntegers[] = {
    {"layers", 1, 1024, SetLayers},
    {"hidden", 1, kMaxWidth, [](ModelConfig& c, int64_t x) { c.hidden_size = x; }},
    {"heads", 1, 65536, SetHeads},
    {"head_dim", 1, 4096, SetHeadDim},
    {"rope", 0, 4096, [](ModelConfig& c, int64_t x) { c.qk_rope_head_dim = x; }},
    {"q_rank", 0, kMaxWidth, [](ModelConfig& c, int64_t x) { c.q_lora_rank = x; }},
    {"kv_rank", 1, 65536, [](ModelConfig& c, int64_t x) { c.kv_lora_rank = x; }},
    {"dense", 1, kMaxWidth, [](ModelConfig& c, int64_t x) { c.intermediate_size = x; }},
    {"dense_layers", 0, 1024, [](ModelConfig& c, int64_t x) { c.first_k_dense_replace = x; }},
    {"experts", 0, 65536, [](ModelConfig& c, int64_t x) { c.num_experts = x; }},
    {"topk", 1, 65536, [](ModelConfig& c, int64_t x) { c.experts_per_token = x; }},
    {"shared", 0, 1024, [](ModelConfig& c, int64_t x) { c.shared_experts = x; }},
    {"expert", 1, kMaxWidth, [](ModelConfig& c, int64_t x) { c.moe_intermediate_size = x; }},
    {"latent", 0, kMaxWidth, SetLatent},
    {"vocab", 257, kMaxWidth, SetVocabulary},
    {"block", 0, 1024, [](ModelConfig& c, int64_t x) { c.attn_res_block_size = x; }},
    {"context", 1, int64_t{1} << 40, [](ModelConfig& c, int64_t x) { c.max_position_embeddings = x; }},
};

// One of two words; the first is true.
struct WordSetting {
  std::string_view key, yes, no;
  void (*set)(ModelConfig&, bool);
};
constexpr WordSetting kWords[] = {
    {"experts_type", "mxfp4", "bf16", [](ModelConfig& c, bool mxfp4) { c.experts_mxfp4 = mxfp4; }},
    {"tied", "true", "false", [](ModelConfig& c, bool tied) { c.tie_word_embeddings = tied; }},
};
constexpr std::string_view kScaling = "scaling";

Status Wrong(std::string_view key, std::string_view got, std::string_view want) {
  return Err(ErrorCode::kInvalidArgument, "[model.presets] {}: got '{}', want {}", key, got.substr(0, 60), want);
}

template <class T>
bool ParseWhole(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::vector<std::string> PresetNames() {
  std::vector<std::string> out;
  for (const Preset& p : kPresets) out.emplace_back(p.name);
  return out;
}

std::string_view PresetSummary(std::string_view name) {
  const Preset* p = FindPreset(name);
  return p == nullptr ? "" : p->summary;
}

Result<ModelConfig> PresetConfig(std::string_view name) {
  const Preset* p = FindPreset(name);
  if (p == nullptr) {
    return Err(ErrorCode::kInvalidArgument, "[model.presets] preset: got '{}', want one of {}", name.substr(0, 60),
               Joined(PresetNames()));
  }
  return p->make();
}

std::vector<std::string> SettingKeys() {
  std::vector<std::string> out;
  for (const IntegerSetting& s : kIntegers) out.emplace_back(s.key);
  for (const WordSetting& s : kWords) out.emplace_back(s.key);
  out.emplace_back(kScaling);
  return out;
}

Status ApplySetting(ModelConfig& config, std::string_view key_value) {
  const size_t at = key_value.find('=');
  if (at == std::string_view::npos) return Wrong("setting", key_value, "key=value, e.g. layers=5");
  const std::string_view key = key_value.substr(0, at), value = key_value.substr(at + 1);
  for (const IntegerSetting& s : kIntegers) {
    if (s.key != key) continue;
    int64_t x = 0;
    if (!ParseWhole(value, x) || x < s.low || x > s.high) {
      return Wrong(key, value, fmt::format("a whole number from {} to {}", s.low, s.high));
    }
    s.set(config, x);
    return {};
  }
  for (const WordSetting& s : kWords) {
    if (s.key != key) continue;
    if (value != s.yes && value != s.no) return Wrong(key, value, fmt::format("{} or {}", s.yes, s.no));
    s.set(config, value == s.yes);
    return {};
  }
  if (key == kScaling) {
    double x = 0;
    if (!ParseWhole(value, x) || !(x >= 1e-6 && x <= 1e6)) return Wrong(key, value, "a number from 1e-6 to 1e6");
    config.routed_scaling_factor = x;
    return {};
  }
  return Wrong("setting", key, "one of " + Joined(SettingKeys()));
}

}  // namespace kestrel
