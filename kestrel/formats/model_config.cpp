#include "kestrel/formats/model_config.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include "kestrel/formats/atomic_file.h"
#include "kestrel/formats/json.h"
#include "kestrel/formats/shown.h"

namespace kestrel {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr int64_t kMaxSize = int64_t{1} << 24;  // of any width; the release's largest is 163 840
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxExperts = 65536;
constexpr int64_t kMaxExpertsInAll = int64_t{1} << 20;  // over all layers; the release has 82 432
constexpr int64_t kMaxPositions = int64_t{1} << 30;
constexpr double kMaxParameters = 1e17;  // so that sums of bytes stay inside 63 bits; the release has 2.8e12

std::string Value(const ordered_json& value) {
  return Shown(value.dump(-1, ' ', false, ordered_json::error_handler_t::replace), 60);
}

// Reads typed values by key out of one object, and remembers the first error.
class Reader {
 public:
  Reader(const ordered_json& object, std::string_view where, std::string prefix)
      : object_(object), where_(where), prefix_(std::move(prefix)) {}

  bool Has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }

  int64_t Integer(const char* key, int64_t low, int64_t high, std::optional<int64_t> absent = {}) {
    if (!Has(key)) return Absent(key, absent);
    const ordered_json& v = object_[key];
    const bool fits = v.is_number_integer() && (!v.is_number_unsigned() || v.get<uint64_t>() <= INT64_MAX);
    if (!fits || v.get<int64_t>() < low || v.get<int64_t>() > high) {
      Fail(key, Value(v), fmt::format("a whole number from {} to {}", low, high));
      return low;
    }
    return v.get<int64_t>();
  }

  double Number(const char* key, double low, double high, std::optional<double> absent = {}) {
    if (!Has(key)) return Absent(key, absent);
    const ordered_json& v = object_[key];
    if (!v.is_number() || !(v.get<double>() >= low && v.get<double>() <= high)) {
      Fail(key, Value(v), fmt::format("a number from {} to {}", low, high));
      return low;
    }
    return v.get<double>();
  }

  bool Flag(const char* key, bool absent) {
    if (!Has(key)) return absent;
    if (!object_[key].is_boolean()) {
      Fail(key, Value(object_[key]), "true or false");
      return absent;
    }
    return object_[key].get<bool>();
  }

  std::string Text(const char* key, const std::string& absent) {
    if (!Has(key)) return absent;
    if (!object_[key].is_string()) {
      Fail(key, Value(object_[key]), "a string");
      return absent;
    }
    return object_[key].get<std::string>();
  }

  std::vector<int64_t> Integers(const char* key, int64_t low, int64_t high, bool or_one) {
    std::vector<int64_t> out;
    if (!Has(key)) return out;
    const ordered_json& v = object_[key];
    if (or_one && v.is_number()) return {Integer(key, low, high)};
    if (!v.is_array()) {
      Fail(key, Value(v), "a list of whole numbers");
      return out;
    }
    for (const auto& x : v) {
      if (!x.is_number_integer() || x.get<int64_t>() < low || x.get<int64_t>() > high) {
        Fail(key, Value(x), fmt::format("whole numbers from {} to {}", low, high));
        return out;
      }
      out.push_back(x.get<int64_t>());
    }
    return out;
  }

  void Fail(const char* key, const std::string& got, const std::string& want) {
    if (!status) return;
    status =
        Err(ErrorCode::kInvalidArgument, "[formats.config] {}: {}{}, got {}, want {}", where_, prefix_, key, got, want);
  }

  Status status;

 private:
  template <class T>
  T Absent(const char* key, std::optional<T> value) {
    if (!value) Fail(key, "nothing", "a value");
    return value.value_or(T{});
  }

  const ordered_json& object_;
  std::string_view where_;
  std::string prefix_;
};

void ReadLayerKinds(Reader& linear, ModelConfig& c) {
  c.is_kda.assign(static_cast<size_t>(c.num_hidden_layers), false);
  std::vector<int> named(c.is_kda.size(), 0);
  const char* keys[] = {"kda_layers", "full_attn_layers"};  // both count from 1
  for (int kind = 0; kind < 2; ++kind) {
    for (const int64_t layer : linear.Integers(keys[kind], 1, c.num_hidden_layers, false)) {
      const auto i = static_cast<size_t>(layer - 1);
      if (named[i]++ != 0)
        return linear.Fail(keys[kind], fmt::format("layer {} twice", layer),
                           "each layer once, in one of the two lists");
      c.is_kda[i] = kind == 0;
    }
  }
  for (size_t i = 0; i < named.size(); ++i) {
    if (named[i] == 0)
      return linear.Fail("kda_layers", fmt::format("layer {} in neither list", i + 1),
                         "each layer in kda_layers or full_attn_layers");
  }
}

void ReadKda(const ordered_json& text, std::string_view where, const std::string& prefix, ModelConfig& c,
             Status& status) {
  if (!text.contains("linear_attn_config") || text["linear_attn_config"].is_null()) {
    c.is_kda.assign(static_cast<size_t>(c.num_hidden_layers), false);
    return;
  }
  if (!text["linear_attn_config"].is_object()) {
    status = Err(ErrorCode::kInvalidArgument, "[formats.config] {}: {}linear_attn_config, got {}, want an object",
                 where, prefix, Value(text["linear_attn_config"]));
    return;
  }
  Reader r(text["linear_attn_config"], where, prefix + "linear_attn_config.");
  ReadLayerKinds(r, c);
  c.kda.heads = r.Integer("num_heads", 1, 65536);
  c.kda.head_dim = r.Integer("head_dim", 1, 4096);
  c.kda.conv_width = r.Integer("short_conv_kernel_size", 1, 16, 4);
  c.kda.full_rank_gate = r.Flag("use_full_rank_gate", false);
  // Below -5.5 a tile of sixteen tokens leaves float32 (16 * 5.5 = 88).
  if (r.Has("gate_lower_bound")) c.kda.gate_lower_bound = r.Number("gate_lower_bound", -5.5, -1e-6);
  if (status && !r.status) status = r.status;
}

void ReadMla(Reader& r, ModelConfig& c) {
  c.num_attention_heads = r.Integer("num_attention_heads", 1, 65536);
  const int64_t kv_heads = r.Integer("num_key_value_heads", 1, 65536, c.num_attention_heads);
  if (kv_heads != c.num_attention_heads) r.Fail("num_key_value_heads", std::to_string(kv_heads), "num_attention_heads");
  c.q_lora_rank = r.Integer("q_lora_rank", 1, kMaxSize, 0);
  c.kv_lora_rank = r.Integer("kv_lora_rank", 1, 65536);
  c.qk_nope_head_dim = r.Integer("qk_nope_head_dim", 1, 4096);
  c.qk_rope_head_dim = r.Integer("qk_rope_head_dim", 0, 4096, 0);
  c.v_head_dim = r.Integer("v_head_dim", 1, 4096);
  c.mla_output_gate = r.Flag("mla_use_output_gate", false);
  if (!r.Flag("mla_use_nope", true))
    r.Fail("mla_use_nope", "false", "true (rotary embedding is not part of this architecture)");
}

void ReadMoe(Reader& r, ModelConfig& c) {
  c.num_experts = r.Integer("num_experts", 0, kMaxExperts, 0);
  c.first_k_dense_replace = r.Integer("first_k_dense_replace", 0, kMaxLayers, 0);
  c.moe_layer_freq = r.Integer("moe_layer_freq", 1, kMaxLayers, 1);
  if (c.num_experts == 0) return;
  c.experts_per_token = r.Integer("num_experts_per_token", 1, c.num_experts);
  c.shared_experts = r.Integer("num_shared_experts", 0, 1024, 0);
  c.moe_intermediate_size = r.Integer("moe_intermediate_size", 1, kMaxSize);
  c.latent_size = r.Integer("routed_expert_hidden_size", 1, kMaxSize, 0);
  c.latent_norm = r.Flag("latent_moe_use_norm", false);
  c.renormalize = r.Flag("moe_renormalize", true);
  c.routed_scaling_factor = r.Number("routed_scaling_factor", 1e-6, 1e6, 1.0);
  const std::string router = r.Text("moe_router_activation_func", "sigmoid");
  if (router != "sigmoid" && router != "softmax")
    r.Fail("moe_router_activation_func", Shown("'" + router + "'", 60), "sigmoid or softmax");
  c.router_sigmoid = router == "sigmoid";
  c.expert_groups = r.Integer("num_expert_group", 1, c.num_experts, 1);
  c.topk_group = r.Integer("topk_group", 1, c.expert_groups, 1);
  if (c.num_experts % c.expert_groups != 0) {
    r.Fail("num_expert_group", std::to_string(c.expert_groups),
           fmt::format("a divisor of num_experts = {}", c.num_experts));
  } else if (c.topk_group < c.expert_groups && c.experts_per_token > c.topk_group * (c.num_experts / c.expert_groups)) {
    r.Fail("num_experts_per_token", std::to_string(c.experts_per_token), "no more than the kept groups hold");
  } else if (c.topk_group < c.expert_groups && c.num_experts / c.expert_groups < 2) {
    r.Fail("num_expert_group", std::to_string(c.expert_groups), "groups of two experts at least");
  }
}

void ReadActivation(Reader& r, ModelConfig& c) {
  const std::string act = r.Text("hidden_act", "silu");
  if (act != "situ" && act != "silu") r.Fail("hidden_act", Shown("'" + act + "'", 60), "situ or silu");
  c.activation.situ = act == "situ";
  if (!c.activation.situ) return;
  c.activation.beta = r.Number("activation_situ_beta", 0, 1e6, 1.0);
  if (c.activation.beta == 0) c.activation.beta = 1;  // the reference reads 0 and null as 1
  c.activation.linear_beta = r.Number("activation_situ_linear_beta", 1e-6, 1e6, 0.0);
}

void ReadQuantization(Reader& r, const ordered_json& text, ModelConfig& c) {
  if (!r.Has("quantization_config")) return;
  const ordered_json& q = text["quantization_config"];
  const std::string method = q.is_object() ? q.value("quant_method", ordered_json()).dump() : "";
  const std::string format = q.is_object() ? q.value("format", ordered_json()).dump() : "";
  if (method != "\"compressed-tensors\"" || format != "\"mxfp4-pack-quantized\"") {
    return r.Fail("quantization_config",
                  fmt::format("quant_method {}, format {}", Shown(method, 60), Shown(format, 60)),
                  "compressed-tensors, mxfp4-pack-quantized");
  }
  c.experts_mxfp4 = true;
}

// About as many as the layers hold; in double, where nothing overflows.
double RoughParameters(const ModelConfig& c) {
  const auto d = [](int64_t x) { return static_cast<double>(x); };
  const double hidden = d(c.hidden_size), kda = d(c.kda.heads) * d(c.kda.head_dim);
  const double query = d(c.num_attention_heads) * d(c.qk_nope_head_dim + c.qk_rope_head_dim + c.v_head_dim);
  const double mixer = kda * (6 * hidden + 2 * d(c.kda.head_dim)) +
                       query * (2 * hidden + d(c.q_lora_rank + c.kv_lora_rank)) + d(c.kv_lora_rank) * hidden;
  const double inner = d(c.latent_size > 0 ? c.latent_size : c.hidden_size);
  const double moe = 3 * d(c.moe_intermediate_size) * (d(c.num_experts) * inner + d(c.shared_experts) * hidden);
  const double dense = 3 * d(c.intermediate_size) * hidden + d(c.num_experts) * hidden + 2 * inner * hidden;
  return 2 * d(c.vocab_size) * hidden + d(c.num_hidden_layers) * (mixer + moe + dense);
}

void CheckSizes(Reader& r, const ModelConfig& c) {
  if (!r.status) return;
  if (c.num_experts * c.num_hidden_layers > kMaxExpertsInAll)
    r.Fail("num_experts", fmt::format("{} in each of {} layers", c.num_experts, c.num_hidden_layers),
           fmt::format("at most {} in all", kMaxExpertsInAll));
  if (const double parameters = RoughParameters(c); parameters > kMaxParameters)
    r.Fail("hidden_size", fmt::format("sizes that make {:.1e} parameters", parameters),
           fmt::format("at most {:.0e}", kMaxParameters));
  if (c.experts_mxfp4 && c.num_experts > 0) {
    const int64_t inner = c.latent_size > 0 ? c.latent_size : c.hidden_size;
    if (inner % 32 != 0)
      r.Fail(c.latent_size > 0 ? "routed_expert_hidden_size" : "hidden_size", std::to_string(inner),
             "a multiple of 32 for MXFP4 experts");
    if (c.moe_intermediate_size % 32 != 0)
      r.Fail("moe_intermediate_size", std::to_string(c.moe_intermediate_size), "a multiple of 32 for MXFP4 experts");
  }
  if (c.first_k_dense_replace > c.num_hidden_layers)
    r.Fail("first_k_dense_replace", std::to_string(c.first_k_dense_replace),
           fmt::format("at most num_hidden_layers = {}", c.num_hidden_layers));
  const std::pair<const char*, int64_t> ids[] = {{"bos_token_id", c.bos_token_id}, {"pad_token_id", c.pad_token_id}};
  for (const auto& [key, id] : ids) {
    if (id >= c.vocab_size) r.Fail(key, std::to_string(id), fmt::format("less than vocab_size = {}", c.vocab_size));
  }
  for (const int64_t eos : c.eos_token_ids) {
    if (eos >= c.vocab_size)
      r.Fail("eos_token_id", std::to_string(eos), fmt::format("less than vocab_size = {}", c.vocab_size));
  }
}

}  // namespace

bool operator==(const ModelConfig& a, const ModelConfig& b) { return ToJson(a) == ToJson(b); }

Result<ModelConfig> ParseModelConfig(std::string_view json, std::string_view where) {
  KESTREL_ASSIGN_OR_RETURN(const ordered_json root, ParseStrictJson(json, where));
  if (!root.is_object())
    return Err(ErrorCode::kCorrupt, "[formats.config] {}: got {}, want an object", where, Value(root));
  ModelConfig c;
  c.nested = root.contains("text_config");
  if (c.nested && !root["text_config"].is_object()) {
    return Err(ErrorCode::kInvalidArgument, "[formats.config] {}: text_config, got {}, want an object", where,
               Value(root["text_config"]));
  }
  const ordered_json& text = c.nested ? root["text_config"] : root;
  const std::string prefix = c.nested ? "text_config." : "";
  Reader r(text, where, prefix);
  c.hidden_size = r.Integer("hidden_size", 1, kMaxSize);
  c.num_hidden_layers = r.Integer("num_hidden_layers", 1, kMaxLayers);
  c.vocab_size = r.Integer("vocab_size", 1, kMaxSize);
  c.rms_norm_eps = r.Number("rms_norm_eps", 0, 1, 1e-6);
  c.max_position_embeddings = r.Integer("max_position_embeddings", 1, kMaxPositions, 1048576);
  c.tie_word_embeddings = r.Flag("tie_word_embeddings", false);
  c.bos_token_id = r.Integer("bos_token_id", -1, kMaxSize, -1);
  c.pad_token_id = r.Integer("pad_token_id", -1, kMaxSize, -1);
  c.eos_token_ids = r.Integers("eos_token_id", 0, kMaxSize, true);
  c.intermediate_size = r.Integer("intermediate_size", 1, kMaxSize);
  c.attn_res_block_size = r.Integer("attn_res_block_size", 1, kMaxLayers, 0);
  if (r.status) {
    Status kda;
    ReadKda(text, where, prefix, c, kda);
    KESTREL_RETURN_IF_ERROR(kda);
  }
  ReadMla(r, c);
  ReadActivation(r, c);
  ReadMoe(r, c);
  ReadQuantization(r, text, c);
  CheckSizes(r, c);
  KESTREL_RETURN_IF_ERROR(r.status);
  return c;
}

Result<ModelConfig> ReadModelConfig(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    const bool file = std::filesystem::exists(folder, error);
    return Err(ErrorCode::kNotFound, "[formats.config] {}: got {}, want a model folder", Shown(folder),
               file ? "a file" : "nothing");
  }
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  KESTREL_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMaxConfigBytes));
  return ParseModelConfig(text, path);
}

namespace {

ordered_json LinearJson(const ModelConfig& c) {
  std::vector<int64_t> kda, full;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) (c.is_kda[static_cast<size_t>(i)] ? kda : full).push_back(i + 1);
  ordered_json out = {{"full_attn_layers", full},
                      {"kda_layers", kda},
                      {"head_dim", c.kda.head_dim},
                      {"num_heads", c.kda.heads},
                      {"short_conv_kernel_size", c.kda.conv_width}};
  if (c.kda.gate_lower_bound) out["gate_lower_bound"] = *c.kda.gate_lower_bound;
  if (c.kda.full_rank_gate) out["use_full_rank_gate"] = true;
  return out;
}

ordered_json QuantizationJson() {
  const ordered_json weights = {{"num_bits", 4},       {"type", "float"},   {"group_size", 32},
                                {"strategy", "group"}, {"symmetric", true}, {"scale_dtype", "torch.uint8"}};
  const ordered_json group = {{"format", "mxfp4-pack-quantized"}, {"targets", {"Linear"}}, {"weights", weights}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "mxfp4-pack-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group}}},
          {"ignore",
           {"re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*",
            "re:.*vision_tower.*", "re:.*mm_projector.*"}}};
}

}  // namespace

std::string ToJson(const ModelConfig& c) {
  const auto or_null = [](int64_t x) { return x > 0 ? ordered_json(x) : ordered_json(nullptr); };
  ordered_json t = {{"architectures", {"KimiLinearForCausalLM"}},
                    {"model_type", "kimi_linear"},
                    {"hidden_size", c.hidden_size},
                    {"num_hidden_layers", c.num_hidden_layers},
                    {"vocab_size", c.vocab_size},
                    {"num_attention_heads", c.num_attention_heads},
                    {"num_key_value_heads", c.num_attention_heads},
                    {"q_lora_rank", or_null(c.q_lora_rank)},
                    {"kv_lora_rank", c.kv_lora_rank},
                    {"qk_nope_head_dim", c.qk_nope_head_dim},
                    {"qk_rope_head_dim", c.qk_rope_head_dim},
                    {"v_head_dim", c.v_head_dim},
                    {"mla_use_nope", true},
                    {"mla_use_output_gate", c.mla_output_gate},
                    {"hidden_act", c.activation.situ ? "situ" : "silu"},
                    {"intermediate_size", c.intermediate_size},
                    {"rms_norm_eps", c.rms_norm_eps},
                    {"first_k_dense_replace", c.first_k_dense_replace},
                    {"moe_layer_freq", c.moe_layer_freq},
                    {"tie_word_embeddings", c.tie_word_embeddings},
                    {"initializer_range", 0.02},
                    {"max_position_embeddings", c.max_position_embeddings},
                    {"dtype", "bfloat16"}};
  if (c.kda.heads > 0) t["linear_attn_config"] = LinearJson(c);
  if (c.bos_token_id >= 0) t["bos_token_id"] = c.bos_token_id;
  if (c.pad_token_id >= 0) t["pad_token_id"] = c.pad_token_id;
  if (c.eos_token_ids.size() == 1) t["eos_token_id"] = c.eos_token_ids[0];
  if (c.eos_token_ids.size() > 1) t["eos_token_id"] = c.eos_token_ids;
  if (c.num_experts > 0) {
    t.update({{"num_experts", c.num_experts},
              {"num_experts_per_token", c.experts_per_token},
              {"num_shared_experts", c.shared_experts},
              {"moe_intermediate_size", c.moe_intermediate_size},
              {"moe_renormalize", c.renormalize},
              {"moe_router_activation_func", c.router_sigmoid ? "sigmoid" : "softmax"},
              {"routed_scaling_factor", c.routed_scaling_factor},
              {"num_expert_group", c.expert_groups},
              {"topk_group", c.topk_group},
              {"use_grouped_topk", true},
              {"topk_method", "noaux_tc"}});
    if (c.latent_size > 0)
      t.update({{"routed_expert_hidden_size", c.latent_size}, {"latent_moe_use_norm", c.latent_norm}});
  }
  if (c.activation.situ) {
    t["activation_situ_beta"] = c.activation.beta;
    if (c.activation.linear_beta > 0) t["activation_situ_linear_beta"] = c.activation.linear_beta;
  }
  if (c.attn_res_block_size > 0) t["attn_res_block_size"] = c.attn_res_block_size;
  if (c.experts_mxfp4) t["quantization_config"] = QuantizationJson();
  if (!c.nested) return t.dump(1) + "\n";
  ordered_json root = {
      {"architectures", {"KimiK3ForConditionalGeneration"}}, {"model_type", "kimi_k3"}, {"dtype", "bfloat16"}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (t.contains(key)) root[key] = t[key];
  }
  root["tie_word_embeddings"] = c.tie_word_embeddings;
  root["text_config"] = t;
  return root.dump(1) + "\n";
}

}  // namespace kestrel
