#include "kestrel/model/inspect.h"

#include <filesystem>
#include <optional>
#include <unordered_set>

#include "kestrel/formats/atomic_file.h"
#include "kestrel/formats/index_file.h"
#include "kestrel/formats/json.h"
#include "kestrel/formats/shown.h"
#include "kestrel/kernels/mla_attention.h"
#include "kestrel/model/shapes.h"
#include "kestrel/model/state.h"

namespace kestrel {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kMaxNamed = 5;
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

void Note(NameList& list, std::string_view name) {
  if (static_cast<size_t>(list.count++) < kMaxNamed) list.first.push_back(Shown(name));
}

void Add(TensorTotals& to, const TensorTotals& x) {
  to.tensors += x.tensors;
  to.parameters += x.parameters;
  to.active += x.active;
  to.bytes += x.bytes;
  to.read_bytes += x.read_bytes;
}

// Parameters of one tensor: a packed byte holds two, a scale none.
int64_t Parameters(const ExpectedTensor& t, int64_t elements) {
  if (t.kind == TensorKind::kMxfp4Scale) return 0;
  return t.kind == TensorKind::kMxfp4Packed ? 2 * elements : elements;
}

// The vision part's parameters by the published layout, from what config.json says of it; 0 where it says too little.
int64_t VisionParameters(const std::string& folder) {
  const auto text = ReadWholeFile((fs::path(folder) / "config.json").string(), kMaxConfigBytes);
  const auto root = text ? ParseStrictJson(*text, folder) : Result<ordered_json>(ordered_json());
  if (!root || !root->is_object() || !root->contains("vision_config")) return 0;
  const ordered_json& vision = (*root)["vision_config"];
  const auto size = [&](const ordered_json& object, const char* key) -> int64_t {
    constexpr int64_t kMax = 1 << 16;  // products of three stay inside 63 bits
    if (!object.is_object() || !object.contains(key) || !object[key].is_number_integer()) return 0;
    const int64_t x = object[key].get<int64_t>();
    return x > 0 && x < kMax ? x : 0;
  };
  const int64_t d = size(vision, "vt_hidden_size"), inner = size(vision, "vt_intermediate_size");
  const int64_t qkv = size(vision, "qkv_hidden_size"), patch = size(vision, "patch_size");
  const int64_t height = size(vision, "init_pos_emb_height"), width = size(vision, "init_pos_emb_width");
  const int64_t blocks = size(vision, "vt_num_hidden_layers"), out = size(vision, "text_hidden_size");
  if (d * inner * qkv == 0 || patch * height * width == 0 || blocks * out == 0) return 0;
  constexpr int64_t kMerged = 4;  // 2 x 2 patches become one row
  const int64_t block = 2 * d + 4 * qkv * d + 2 * inner * d;
  const int64_t patches = 3 * patch * patch * d + height * width * d;
  return patches + blocks * block + d + kMerged * d * (kMerged * d + out) + out;
}

class Inspector {
 public:
  Inspector(std::string folder, int64_t context) : folder_(std::move(folder)) { out_.state.context = context; }

  Result<Inspection> Run() {
    KESTREL_ASSIGN_OR_RETURN(out_.config, ReadModelConfig(folder_));
    if (out_.state.context == 0) out_.state.context = std::min<int64_t>(32768, config().max_position_embeddings);
    if (out_.state.context < 1 || out_.state.context > config().max_position_embeddings) {
      return Err(ErrorCode::kOutOfRange, "[model.inspect] context, got {}, want 1 to {} (max_position_embeddings)",
                 out_.state.context, config().max_position_embeddings);
    }
    KESTREL_RETURN_IF_ERROR(OpenFiles());
    CountText();
    CountRest();
    CountState();
    return std::move(out_);
  }

 private:
  const ModelConfig& config() const { return out_.config; }

  Status OpenFiles() {
    const fs::path folder(folder_), index_path = folder / "model.safetensors.index.json";
    std::error_code ignored;  // a file that can't be looked at is absent
    if (fs::exists(index_path, ignored)) {
      KESTREL_ASSIGN_OR_RETURN(index_, IndexFile::Read(index_path.string()));
      out_.source = Inspection::Source::kIndex;
      out_.declared_bytes = index_->total_size();
      out_.shards = static_cast<int64_t>(index_->shards().size());
      for (const std::string& shard : index_->shards())
        out_.shards_absent += fs::exists(folder / shard, ignored) ? 0 : 1;
    } else {
      out_.shards = 1;
      out_.shards_absent = fs::exists(folder / "model.safetensors", ignored) ? 0 : 1;
    }
    if (out_.shards_absent > 0) return {};
    index_.reset();
    KESTREL_ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(folder_));
    out_.source = Inspection::Source::kHeaders;
    return {};
  }

  // Of a tensor the model wants: its sizes, or nothing where the files lack it.
  std::optional<TensorTotals> Measure(const ExpectedTensor& t) {
    int64_t elements = NumElements(t.shape);
    uint64_t bytes = static_cast<uint64_t>(elements) * SizeOf(PublishedDtype(config(), t));
    if (checkpoint_) {
      const TensorEntry* entry = checkpoint_->Find(t.name);
      if (entry == nullptr) return std::nullopt;
      used_entries_.insert(entry);
      elements = NumElements(entry->shape);
      bytes = entry->end - entry->begin;
    } else if (index_) {
      const auto row = index_->Find(t.name);
      if (!row) return std::nullopt;
      used_rows_[*row] = true;
    }
    return TensorTotals{1, Parameters(t, elements), 0, bytes, 0};
  }

  // What decoding one token touches of a tensor. Routed experts are all of one size: the first k stand for any k.
  void SetActive(const ExpectedTensor& t, TensorTotals& x) const {
    const bool one_row = t.component == Component::kEmbedding && !config().tie_word_embeddings;
    const bool idle = t.expert >= config().experts_per_token;
    const int64_t of = one_row ? config().vocab_size : 1;
    x.active = idle ? 0 : x.parameters / of;
    x.read_bytes = idle ? 0 : x.bytes / static_cast<uint64_t>(of);
  }

  void CountText() {
    TensorTotals by_component[static_cast<size_t>(Component::kExperts) + 1];
    if (index_) used_rows_.assign(index_->size(), false);
    InitLayers();
    ForEachExpectedTensor(config(), [&](const ExpectedTensor& t) {
      std::optional<TensorTotals> x = Measure(t);
      if (!x) return Note(out_.missing, t.name);
      SetActive(t, *x);
      Add(by_component[static_cast<size_t>(t.component)], *x);
      if (t.layer >= 0) Add(out_.layers[static_cast<size_t>(t.layer)].totals, *x);
      if (t.expert == 0 && t.layer == first_moe_layer_) Add(out_.expert, *x);
    });
    for (size_t c = 0; c < std::size(by_component); ++c) {
      if (by_component[c].tensors == 0) continue;
      out_.components.push_back({static_cast<Component>(c), by_component[c]});
      Add(out_.text, by_component[c]);
    }
  }

  void InitLayers() {
    for (int64_t i = 0; i < config().num_hidden_layers; ++i) {
      LayerSummary layer;
      layer.kda = config().is_kda[static_cast<size_t>(i)];
      layer.moe = config().is_moe(i);
      if (config().attn_res_block_size > 0) layer.block = static_cast<int>(i / config().attn_res_block_size);
      if (layer.moe && first_moe_layer_ < 0) first_moe_layer_ = static_cast<int>(i);
      out_.layers.push_back(layer);
    }
  }

  // The tensors that the text model did not ask for.
  void CountRest() {
    if (checkpoint_) {
      out_.tensors = static_cast<int64_t>(checkpoint_->places().size());
      out_.bytes = checkpoint_->tensor_bytes();
      for (const auto& [name, place] : checkpoint_->places()) {
        if (used_entries_.count(place.entry) > 0) continue;
        if (!IsVisionTensor(name)) {
          Note(out_.unknown, name);
          continue;
        }
        Add(out_.vision, {1, NumElements(place.entry->shape), 0, place.entry->end - place.entry->begin, 0});
      }
      return;
    }
    out_.vision.parameters = VisionParameters(folder_);
    out_.vision.bytes = static_cast<uint64_t>(out_.vision.parameters) * SizeOf(Dtype::kBF16);
    out_.bytes = out_.text.bytes + out_.vision.bytes;
    out_.tensors = out_.text.tensors;
    if (!index_) return;
    out_.tensors = static_cast<int64_t>(index_->size());
    for (size_t i = 0; i < index_->size(); ++i) {
      if (used_rows_[i]) continue;
      if (IsVisionTensor(index_->name(i))) {
        ++out_.vision.tensors;
      } else {
        Note(out_.unknown, index_->name(i));
      }
    }
  }

  void CountState() {
    const StateLayout layout(config(), MatMulMode::kBf16, 0);
    StateCosts& s = out_.state;
    const auto kda_layers = static_cast<uint64_t>(config().num_hidden_layers - layout.mla_layers);
    const KdaConfig& kda = config().kda;
    const auto width = static_cast<uint64_t>(kda.heads * kda.head_dim);
    if (kda_layers > 0) {
      s.kda_matrices = kda_layers * width * static_cast<uint64_t>(kda.head_dim) * sizeof(float);
      s.kda_kept = kda_layers * KdaStateBytes(KdaShapeOf(config()));
      s.conv_kept = kda_layers * 3 * static_cast<uint64_t>(kda.conv_width - 1) * width * sizeof(float);
    }
    s.fixed_kept = layout.fixed_bytes;
    s.page_tokens = kMlaPageTokens;
    s.latent_per_token = layout.group_bytes() / kMlaPageTokens;
    const int64_t pages = (s.context + kMlaPageTokens - 1) / kMlaPageTokens;
    s.latent_kept = static_cast<uint64_t>(pages) * layout.group_bytes();
    s.total = s.fixed_kept + s.latent_kept;
    out_.read_per_token = out_.text.read_bytes + s.fixed_kept + static_cast<uint64_t>(s.context) * s.latent_per_token;
  }

  const std::string folder_;
  Inspection out_;
  int first_moe_layer_ = -1;
  std::optional<IndexFile> index_;
  std::optional<Checkpoint> checkpoint_;
  std::vector<bool> used_rows_;  // [rows of the index]
  std::unordered_set<const TensorEntry*> used_entries_;
};

}  // namespace

Result<Inspection> Inspect(const std::string& folder, int64_t context) { return Inspector(folder, context).Run(); }

}  // namespace kestrel
