#include "kestrel/model/tensor_names.h"

#include <cstring>
#include <unordered_set>

#include "kestrel/formats/shown.h"

namespace kestrel {
namespace {

// Calls f for the tensors of one model part after another, until it returns false.
class Lister {
 public:
  Lister(const ModelConfig& config, std::function<bool(const ExpectedTensor&)> f)
      : c_(config), f_(std::move(f)), prefix_(config.nested ? "language_model." : "") {}

  void All() {
    Add("model.embed_tokens.weight", TensorKind::kMatrix, {c_.vocab_size, c_.hidden_size}, Component::kEmbedding);
    for (layer_ = 0; layer_ < c_.num_hidden_layers && !stopped_; ++layer_)
      Layer("model.layers." + std::to_string(layer_));
    layer_ = -1;
    Residual("model.output_attn_res");
    Norm("model.norm", c_.hidden_size);
    if (!c_.tie_word_embeddings) Matrix("lm_head", c_.vocab_size, c_.hidden_size, Component::kHead);
  }

 private:
  using Init = ExpectedTensor::Init;

  void Add(const std::string& name, TensorKind kind, Shape shape, Component component,
           Init init = ExpectedTensor::kNormal) {
    stopped_ = stopped_ || !f_({prefix_ + name, kind, std::move(shape), component, layer_, expert_, init});
  }
  void Matrix(const std::string& stem, int64_t rows, int64_t cols, Component component) {
    Add(stem + ".weight", TensorKind::kMatrix, {rows, cols}, component);
  }
  void Norm(const std::string& stem, int64_t n, Component component = Component::kNorms) {
    Add(stem + ".weight", TensorKind::kVector, {n}, component, ExpectedTensor::kOnes);
  }
  void Residual(const std::string& stem) {
    if (c_.attn_res_block_size == 0) return;
    Norm(stem + "_norm", c_.hidden_size, Component::kAttnRes);
    Add(stem + "_proj.weight", TensorKind::kMatrix, {1, c_.hidden_size}, Component::kAttnRes, ExpectedTensor::kZeros);
  }

  void Layer(const std::string& p) {
    Norm(p + ".input_layernorm", c_.hidden_size);
    Norm(p + ".post_attention_layernorm", c_.hidden_size);
    Residual(p + ".self_attention_res");
    Residual(p + ".mlp_res");
    if (c_.is_kda[static_cast<size_t>(layer_)]) {
      Kda(p + ".self_attn");
    } else {
      Mla(p + ".self_attn");
    }
    if (c_.is_moe(layer_)) {
      Moe(p + ".block_sparse_moe");
    } else {
      Mlp(p + ".mlp", c_.intermediate_size, Component::kDense);
    }
  }

  void Kda(const std::string& p) {
    const int64_t width = c_.kda.heads * c_.kda.head_dim, d = c_.kda.head_dim, hidden = c_.hidden_size;
    for (const char* n : {".q", ".k", ".v"}) Matrix(p + n + "_proj", width, hidden, Component::kKda);
    for (const char* n : {".q", ".k", ".v"}) {
      Add(p + n + "_conv1d.weight", TensorKind::kVector, {width, 1, c_.kda.conv_width}, Component::kKda,
          ExpectedTensor::kConv);
    }
    // The release pads A_log to the head dimension where it has fewer heads; Kimi Linear stores [1, 1, H, 1].
    const Shape a_log = c_.nested ? Shape{std::max(c_.kda.heads, d)} : Shape{1, 1, c_.kda.heads, 1};
    Add(p + ".A_log", TensorKind::kFloat, a_log, Component::kKda, ExpectedTensor::kZeros);
    Add(p + ".dt_bias", TensorKind::kFloat, {width}, Component::kKda, ExpectedTensor::kDtBias);
    Matrix(p + ".f_a_proj", d, hidden, Component::kKda);
    Matrix(p + ".f_b_proj", width, d, Component::kKda);
    Matrix(p + ".b_proj", c_.kda.heads, hidden, Component::kKda);
    if (c_.kda.full_rank_gate) {
      Matrix(p + ".g_proj", width, hidden, Component::kKda);
    } else {
      Matrix(p + ".g_a_proj", d, hidden, Component::kKda);
      Matrix(p + ".g_b_proj", width, d, Component::kKda);
    }
    Norm(p + ".o_norm", d, Component::kKda);
    Matrix(p + ".o_proj", hidden, width, Component::kKda);
  }

  void Mla(const std::string& p) {
    const int64_t heads = c_.num_attention_heads, qk = c_.qk_nope_head_dim + c_.qk_rope_head_dim,
                  hidden = c_.hidden_size;
    if (c_.q_lora_rank > 0) {
      Matrix(p + ".q_a_proj", c_.q_lora_rank, hidden, Component::kMla);
      Norm(p + ".q_a_layernorm", c_.q_lora_rank, Component::kMla);
      Matrix(p + ".q_b_proj", heads * qk, c_.q_lora_rank, Component::kMla);
    } else {
      Matrix(p + ".q_proj", heads * qk, hidden, Component::kMla);
    }
    Matrix(p + ".kv_a_proj_with_mqa", c_.kv_lora_rank + c_.qk_rope_head_dim, hidden, Component::kMla);
    Norm(p + ".kv_a_layernorm", c_.kv_lora_rank, Component::kMla);
    Matrix(p + ".kv_b_proj", heads * (c_.qk_nope_head_dim + c_.v_head_dim), c_.kv_lora_rank, Component::kMla);
    if (c_.mla_output_gate) Matrix(p + ".g_proj", heads * c_.v_head_dim, hidden, Component::kMla);
    Matrix(p + ".o_proj", hidden, heads * c_.v_head_dim, Component::kMla);
  }

  void Mlp(const std::string& p, int64_t width, Component component) {
    Matrix(p + ".gate_proj", width, c_.hidden_size, component);
    Matrix(p + ".up_proj", width, c_.hidden_size, component);
    Matrix(p + ".down_proj", c_.hidden_size, width, component);
  }

  void Moe(const std::string& p) {
    const int64_t inner = c_.latent_size > 0 ? c_.latent_size : c_.hidden_size;
    Matrix(p + ".gate", c_.num_experts, c_.hidden_size, Component::kRouter);
    Add(p + ".gate.e_score_correction_bias", TensorKind::kFloat, {c_.num_experts}, Component::kRouter,
        ExpectedTensor::kZeros);
    if (c_.latent_size > 0) {
      Matrix(p + ".routed_expert_down_proj", inner, c_.hidden_size, Component::kLatent);
      if (c_.latent_norm) Norm(p + ".routed_expert_norm", inner, Component::kLatent);
      Matrix(p + ".routed_expert_up_proj", c_.hidden_size, inner, Component::kLatent);
    }
    if (c_.shared_experts > 0)
      Mlp(p + ".shared_experts", c_.shared_experts * c_.moe_intermediate_size, Component::kShared);
    for (expert_ = 0; expert_ < c_.num_experts && !stopped_; ++expert_) {
      const std::string q = p + ".experts." + std::to_string(expert_);
      Expert(q + ".w1", c_.moe_intermediate_size, inner);
      Expert(q + ".w2", inner, c_.moe_intermediate_size);
      Expert(q + ".w3", c_.moe_intermediate_size, inner);
    }
    expert_ = -1;
  }

  void Expert(const std::string& stem, int64_t rows, int64_t cols) {
    if (!c_.experts_mxfp4) return Matrix(stem, rows, cols, Component::kExperts);
    Add(stem + ".weight_packed", TensorKind::kMxfp4Packed, {rows, cols / 2}, Component::kExperts);
    Add(stem + ".weight_scale", TensorKind::kMxfp4Scale, {rows, cols / 32}, Component::kExperts);
  }

  const ModelConfig& c_;
  std::function<bool(const ExpectedTensor&)> f_;
  std::string prefix_;
  bool stopped_ = false;
  int layer_ = -1, expert_ = -1;
};

std::string Wanted(TensorKind kind) {
  switch (kind) {
    case TensorKind::kMatrix:
    case TensorKind::kVector:
      return "BF16 or F32";
    case TensorKind::kFloat:
      return "F32";
    default:
      return "U8";
  }
}

bool TypeFits(TensorKind kind, Dtype dtype) {
  switch (kind) {
    case TensorKind::kMatrix:
    case TensorKind::kVector:
      return dtype == Dtype::kBF16 || dtype == Dtype::kF32;
    case TensorKind::kFloat:
      return dtype == Dtype::kF32;
    default:
      return dtype == Dtype::kU8;
  }
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// A_log may be [H], padded [P > H], or [1, 1, H, 1].
bool ShapeFits(const ModelConfig& c, const ExpectedTensor& want, const Shape& got) {
  if (EndsWith(want.name, ".A_log")) {
    const int64_t n = NumElements(got);
    const bool flat = got.size() == 1 && n >= c.kda.heads;
    return flat || got == Shape{1, 1, c.kda.heads, 1};
  }
  if (EndsWith(want.name, ".dt_bias")) return NumElements(got) == want.shape[0];
  return got == want.shape;
}

Status CheckPadding(const ModelConfig& c, const ExpectedTensor& want, const TensorView& view) {
  for (int64_t i = c.kda.heads; i < view.elements(); ++i) {
    float x;
    std::memcpy(&x, view.bytes.data() + i * 4, 4);
    if (x != 0) {
      return Err(
          ErrorCode::kMismatch,
          "[model.bind] {}: number {} is padding past the {} heads, got {}, want 0; A_log is per head, not per channel",
          want.name, i, c.kda.heads, x);
    }
  }
  return {};
}

Status CheckOne(const ModelConfig& c, const ExpectedTensor& want, const Checkpoint& checkpoint) {
  const TensorEntry* got = checkpoint.Find(want.name);
  if (got == nullptr) {
    std::string other = want.name;
    const bool packed = want.kind == TensorKind::kMxfp4Packed || want.kind == TensorKind::kMxfp4Scale;
    if (packed) other = other.substr(0, other.rfind(".weight_")) + ".weight";
    const std::string hint =
        packed && checkpoint.Contains(other)
            ? fmt::format("; the file holds {}, but the config declares MXFP4 experts", other)
        : !packed && checkpoint.Contains(other + "_packed")
            ? fmt::format("; the file holds {}_packed, but the config declares no quantization", other)
            : "";
    return Err(ErrorCode::kNotFound, "[model.bind] {}: missing, want {} {}{}", want.name, Wanted(want.kind),
               ToString(want.shape), hint);
  }
  if (!TypeFits(want.kind, got->dtype)) {
    return Err(ErrorCode::kMismatch, "[model.bind] {}: type, got {}, want {}", want.name, Name(got->dtype),
               Wanted(want.kind));
  }
  if (!ShapeFits(c, want, got->shape)) {
    return Err(ErrorCode::kMismatch, "[model.bind] {}: shape, got {}, want {}", want.name, ToString(got->shape),
               ToString(want.shape));
  }
  if (EndsWith(want.name, ".A_log")) return CheckPadding(c, want, checkpoint.View(want.name));
  if (want.kind == TensorKind::kMxfp4Scale) {
    const auto bytes = checkpoint.View(want.name).bytes;
    if (std::memchr(bytes.data(), 255, bytes.size()) != nullptr) {
      return Err(ErrorCode::kNotFinite, "[model.bind] {}: got a scale of 255 (NaN), want 0 to 254", want.name);
    }
  }
  return {};
}

}  // namespace

const char* Name(Component component) {
  constexpr const char* kNames[] = {"embedding", "head",   "norms",  "attn_res", "kda",    "mla",
                                    "dense",     "router", "latent", "shared",   "experts"};
  return kNames[static_cast<size_t>(component)];
}

void ForEachExpectedTensor(const ModelConfig& config, const std::function<void(const ExpectedTensor&)>& f) {
  Lister(config, [&](const ExpectedTensor& t) { return f(t), true; }).All();
}

Dtype PublishedDtype(const ModelConfig& config, const ExpectedTensor& tensor) {
  switch (tensor.kind) {
    case TensorKind::kMatrix:
      return Dtype::kBF16;
    case TensorKind::kVector:
      return config.nested && tensor.component == Component::kKda ? Dtype::kF32 : Dtype::kBF16;
    case TensorKind::kFloat:
      return Dtype::kF32;
    default:
      return Dtype::kU8;
  }
}

bool IsVisionTensor(std::string_view name) {
  return name.rfind("vision_tower.", 0) == 0 || name.rfind("mm_projector.", 0) == 0;
}

Status CheckTensors(const ModelConfig& config, const Checkpoint& checkpoint) {
  Status status;
  // What is kept is bounded by the files, never by what a config claims.
  std::unordered_set<const TensorEntry*> used;
  Lister(config, [&](const ExpectedTensor& want) {
    status = CheckOne(config, want, checkpoint);
    if (status) used.insert(checkpoint.Find(want.name));
    return status.has_value();
  }).All();
  KESTREL_RETURN_IF_ERROR(status);
  for (const auto& [name, place] : checkpoint.places()) {
    if (IsVisionTensor(name) || used.count(place.entry) > 0) continue;
    return Err(ErrorCode::kMismatch, "[model.bind] {}: got {} {} that no part of the model uses, want no such tensor",
               Shown(name), Name(place.entry->dtype), ToString(place.entry->shape));
  }
  return {};
}

}  // namespace kestrel
