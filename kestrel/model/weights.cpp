#include "kestrel/model/weights.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "kestrel/base/check.h"
#include "kestrel/base/float_types.h"
#include "kestrel/model/tensor_names.h"

namespace kestrel {
namespace {

// A packing task is about a megabyte: small enough to balance threads, large enough to amortise a hand-out.
constexpr int64_t kTaskBytes = int64_t{1} << 20;

// Takes pages of the mapped file out of the resident set. Pages at the edges go too: a mapping is whole pages, and a
// neighbour that still needs one reads it again.
void DropMappedPages(std::span<const std::byte> bytes) {
  const auto first = reinterpret_cast<uintptr_t>(bytes.data()) & ~uintptr_t{4095};
  const auto last = (reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size() + 4095) & ~uintptr_t{4095};
  if (!bytes.empty()) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

uint64_t Fnv1a(uint64_t hash, const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * 0x100000001b3u;
  return hash;
}

// Reads element i of a float tensor of the file, whose bytes may be unaligned.
float ReadFloat(const TensorView& view, int64_t i) {
  if (view.dtype == Dtype::kF32) {
    float x;
    std::memcpy(&x, view.bytes.data() + i * 4, 4);
    return x;
  }
  bf16 x;
  std::memcpy(&x, view.bytes.data() + i * 2, 2);
  return ToFloat(x);
}

void ReadFloats(const TensorView& view, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = ReadFloat(view, i);
}

}  // namespace

// Runs the same binding twice: a first pass measures how much memory the handles need, the second one hands out
// pointers into it and records what has to be packed; the packing then runs on all threads.
class WeightBinder {
 public:
  WeightBinder(const Checkpoint& checkpoint, const ModelConfig& config, ModelWeights& out)
      : checkpoint_(checkpoint), config_(config), out_(out), prefix_(config.nested ? "language_model." : "") {}

  void Run(Context& ctx, const ModelWeights::ProgressFn& progress) {
    Bind();
    out_.memory_ = AlignedBuffer(used_);
    base_ = out_.memory_.data();
    used_ = 0;
    Bind();
    Pack(ctx, progress);
    out_.fingerprint_ = Fingerprint();
  }

 private:
  struct Task {
    enum Kind { kPackF32, kPackWidened, kPackBf16, kPackMxfp4, kPackTransposed, kCopy } kind;
    TensorView source, scale;
    PackedMatrix target;
    int64_t row0 = 0;  // first row of the source that belongs to the target (heads of kv_b)
    int64_t begin = 0, end = 0;
  };

  bool measuring() const { return base_ == nullptr; }

  std::byte* Take(size_t bytes) {
    std::byte* p = measuring() ? nullptr : base_ + used_;
    used_ += (bytes + 63) & ~size_t{63};
    return p;
  }

  TensorView View(const std::string& name) const { return checkpoint_.View(prefix_ + name); }

  const float* Vector(const std::string& name) {
    const TensorView view = View(name);
    auto* p = reinterpret_cast<float*>(Take(static_cast<size_t>(view.elements()) * 4));
    if (p != nullptr) ReadFloats(view, view.elements(), p);
    return p;
  }

  PackedMatrix Place(WeightType type, int64_t rows, int64_t cols) {
    return {type, rows, cols, Take(PackedBytes(type, rows, cols))};
  }

  // Cuts the packing of `target` into tasks of whole output blocks.
  void AddTasks(Task task) {
    if (measuring()) return;
    const int64_t blocks = PackBlocks(task.target.rows);
    const auto bytes = static_cast<int64_t>(PackedBytes(task.target.type, task.target.rows, task.target.cols));
    const int64_t step = std::max<int64_t>(1, blocks * kTaskBytes / std::max<int64_t>(bytes, 1));
    for (int64_t b = 0; b < blocks; b += step) {
      task.begin = b;
      task.end = std::min(blocks, b + step);
      tasks_.push_back(task);
    }
  }

  PackedMatrix Matrix(const std::string& stem, bool widen = false) {
    const std::string name = prefix_ + stem + ".weight";
    if (!checkpoint_.Contains(name)) return Mxfp4(stem);
    const TensorView view = checkpoint_.View(name);
    const bool f32 = view.dtype == Dtype::kF32;
    const PackedMatrix m = Place(f32 || widen ? WeightType::kF32 : WeightType::kBf16, view.shape[0], view.shape[1]);
    AddTasks({f32 ? Task::kPackF32 : widen ? Task::kPackWidened : Task::kPackBf16, view, {}, m});
    return m;
  }

  PackedMatrix Mxfp4(const std::string& stem) {
    const TensorView packed = View(stem + ".weight_packed");
    const PackedMatrix m = Place(WeightType::kMxfp4, packed.shape[0], packed.shape[1] * 2);
    AddTasks({Task::kPackMxfp4, packed, View(stem + ".weight_scale"), m});
    return m;
  }

  // [C, 1, width] of the file -> [width, C]: lanes are channels.
  const float* Convolution(const std::string& stem) {
    const TensorView view = View(stem + ".weight");
    const int64_t channels = view.shape[0], width = view.shape[2];
    auto* p = reinterpret_cast<float*>(Take(static_cast<size_t>(channels * width) * 4));
    if (p == nullptr) return p;
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t j = 0; j < width; ++j) p[j * channels + c] = ReadFloat(view, c * width + j);
    }
    return p;
  }

  ResidualWeights Residual(const std::string& stem) {
    if (config_.attn_res_block_size == 0) return {};
    const TensorView norm = View(stem + "_norm.weight"), proj = View(stem + "_proj.weight");
    const int64_t n = config_.hidden_size;
    auto* p = reinterpret_cast<float*>(Take(static_cast<size_t>(n) * 4));
    for (int64_t i = 0; p != nullptr && i < n; ++i) p[i] = ReadFloat(norm, i) * ReadFloat(proj, i);
    return {p};
  }

  KdaWeights Kda(const std::string& p) {
    KdaWeights w;
    w.q = Matrix(p + ".q_proj");
    w.k = Matrix(p + ".k_proj");
    w.v = Matrix(p + ".v_proj");
    w.conv_q = Convolution(p + ".q_conv1d");
    w.conv_k = Convolution(p + ".k_conv1d");
    w.conv_v = Convolution(p + ".v_conv1d");
    w.f_a = Matrix(p + ".f_a_proj");
    w.f_b = Matrix(p + ".f_b_proj");
    w.dt_bias = Vector(p + ".dt_bias");
    w.a = DecayRates(p + ".A_log");
    w.b = Matrix(p + ".b_proj");
    if (config_.kda.full_rank_gate) {
      w.g = Matrix(p + ".g_proj");
    } else {
      w.g = Matrix(p + ".g_a_proj");
      w.g_b = Matrix(p + ".g_b_proj");
    }
    w.o_norm = Vector(p + ".o_norm.weight");
    w.o = Matrix(p + ".o_proj");
    return w;
  }

  // One number per head; the release pads the tensor with zeros past the heads (CheckTensors has seen that it is
  // zeros).
  const float* DecayRates(const std::string& name) {
    const TensorView view = View(name);
    const int64_t heads = config_.kda.heads;
    auto* p = reinterpret_cast<float*>(Take(static_cast<size_t>(heads) * 4));
    for (int64_t h = 0; p != nullptr && h < heads; ++h) p[h] = std::exp(ReadFloat(view, h));
    return p;
  }

  MlaWeights Mla(const std::string& p) {
    MlaWeights w;
    if (config_.q_lora_rank > 0) {
      w.q_a = Matrix(p + ".q_a_proj");
      w.q_a_norm = Vector(p + ".q_a_layernorm.weight");
      w.q = Matrix(p + ".q_b_proj");
    } else {
      w.q = Matrix(p + ".q_proj");
    }
    w.kv_a = Matrix(p + ".kv_a_proj_with_mqa");
    w.kv_a_norm = Vector(p + ".kv_a_layernorm.weight");
    BindUpProjection(p + ".kv_b_proj.weight", w);
    if (config_.mla_output_gate) w.g = Matrix(p + ".g_proj");
    w.o = Matrix(p + ".o_proj");
    return w;
  }

  // kv_b three times: as it stands for prefill, and cut by head for decoding, where the key rows [nope, R] are absorbed
  // into the query (so their transpose is packed) and the value rows [v, R] into the output.
  void BindUpProjection(const std::string& name, MlaWeights& w) {
    const TensorView view = View(name);
    const bool bf = view.dtype == Dtype::kBF16;
    const int64_t rank = config_.kv_lora_rank, nope = config_.qk_nope_head_dim, v_dim = config_.v_head_dim;
    w.kv_b_is_bf16 = bf;
    PackedMatrix raw{bf ? WeightType::kBf16 : WeightType::kF32, view.shape[0], rank, Take(view.bytes.size())};
    w.kv_b = raw.data;
    AddTasks({Task::kCopy, view, {}, raw});
    for (int h = 0; h < config_.num_attention_heads; ++h) {
      const int64_t row = h * (nope + v_dim);
      // The key half is widened to a float32 matrix where the file has float32.
      Task key{Task::kPackTransposed, view, {}, Place(raw.type, rank, nope), row};
      AddTasks(key);
      w.key_absorbed.push_back(key.target);
      Task value{bf ? Task::kPackBf16 : Task::kPackF32, view, {}, Place(raw.type, v_dim, rank), row + nope};
      AddTasks(value);
      w.value.push_back(value.target);
    }
  }

  DenseMlpWeights Mlp(const std::string& p) {
    DenseMlpWeights w;
    w.gate = Matrix(p + ".gate_proj");
    w.up = Matrix(p + ".up_proj");
    w.down = Matrix(p + ".down_proj");
    return w;
  }

  LatentMoeWeights Moe(const std::string& p) {
    LatentMoeWeights w;
    w.router = Matrix(p + ".gate", /*widen=*/true);
    w.router_bias = Vector(p + ".gate.e_score_correction_bias");
    if (config_.latent_size > 0) {
      w.latent_down = Matrix(p + ".routed_expert_down_proj");
      w.latent_up = Matrix(p + ".routed_expert_up_proj");
      if (config_.latent_norm) w.latent_norm = Vector(p + ".routed_expert_norm.weight");
    }
    for (int e = 0; e < config_.num_experts; ++e) {
      const std::string q = p + ".experts." + std::to_string(e);
      ExpertWeights x;
      x.w1 = Matrix(q + ".w1");
      x.w3 = Matrix(q + ".w3");
      x.w2 = Matrix(q + ".w2");
      w.experts.push_back(x);
    }
    if (config_.shared_experts > 0) w.shared = Mlp(p + ".shared_experts");
    return w;
  }

  void Bind() {
    out_.layers_.clear();
    tasks_.clear();
    BindEmbedding();
    for (int i = 0; i < config_.num_hidden_layers; ++i) {
      const std::string p = "model.layers." + std::to_string(i);
      LayerWeights w;
      w.mixer_residual = Residual(p + ".self_attention_res");
      w.ffn_residual = Residual(p + ".mlp_res");
      w.input_norm = Vector(p + ".input_layernorm.weight");
      w.post_attention_norm = Vector(p + ".post_attention_layernorm.weight");
      if (config_.is_kda[static_cast<size_t>(i)]) {
        w.kda = Kda(p + ".self_attn");
      } else {
        w.mla = Mla(p + ".self_attn");
      }
      if (config_.is_moe(i)) {
        w.moe = Moe(p + ".block_sparse_moe");
      } else {
        w.mlp = Mlp(p + ".mlp");
      }
      out_.layers_.push_back(std::move(w));
    }
    out_.output_residual = Residual("model.output_attn_res");
    out_.final_norm = Vector("model.norm.weight");
    out_.lm_head = Matrix(config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head");
  }

  void BindEmbedding() {
    const TensorView view = View("model.embed_tokens.weight");
    out_.embedding_is_bf16 = view.dtype == Dtype::kBF16;
    PackedMatrix raw{out_.embedding_is_bf16 ? WeightType::kBf16 : WeightType::kF32, view.shape[0], view.shape[1],
                     Take(view.bytes.size())};
    out_.embedding = raw.data;
    AddTasks({Task::kCopy, view, {}, raw});
  }

  void Pack(Context& ctx, const ModelWeights::ProgressFn& progress) {
    // In slices, so that progress is reported from the calling thread and little of the file is resident at once.
    const auto total = static_cast<int64_t>(tasks_.size());
    constexpr int64_t kSlice = 64;
    for (int64_t first = 0; first < total; first += kSlice) {
      const int64_t n = std::min(kSlice, total - first);
      ctx.pool.Run(n, [&](int64_t i, int) { RunTask(tasks_[static_cast<size_t>(first + i)]); });
      DropSources({tasks_.data() + first, static_cast<size_t>(n)});
      if (progress) progress(static_cast<double>(first + n), static_cast<double>(total));
    }
    DropSources(tasks_);  // what a page fault mapped beside the page it was for
  }

  static void DropSources(std::span<const Task> tasks) {
    const std::byte* last = nullptr;  // tasks of one tensor follow each other
    for (const Task& t : tasks) {
      if (t.source.bytes.data() == last) continue;
      last = t.source.bytes.data();
      DropMappedPages(t.source.bytes);
      DropMappedPages(t.scale.bytes);
    }
  }

  static void RunTask(const Task& t) {
    auto* out = const_cast<std::byte*>(t.target.data);
    const std::byte* source = t.source.bytes.data();
    const int64_t rows = t.target.rows, cols = t.target.cols;
    switch (t.kind) {
      case Task::kCopy:
        CopyRows(t, out);
        break;
      case Task::kPackF32:
        PackF32(reinterpret_cast<const float*>(source + t.row0 * cols * 4), rows, cols, t.begin, t.end, out);
        break;
      case Task::kPackWidened:
        PackWidened(reinterpret_cast<const bf16*>(source), rows, cols, t.begin, t.end, out);
        break;
      case Task::kPackBf16:
        PackBf16(reinterpret_cast<const bf16*>(source + t.row0 * cols * 2), rows, cols, t.begin, t.end, out);
        break;
      case Task::kPackMxfp4:
        PackMxfp4(reinterpret_cast<const uint8_t*>(source), reinterpret_cast<const uint8_t*>(t.scale.bytes.data()),
                  rows, cols, t.begin, t.end, out);
        break;
      case Task::kPackTransposed:
        PackTransposed(t, out);
        break;
    }
  }

  static void CopyRows(const Task& t, std::byte* out) {
    const size_t row_bytes = static_cast<size_t>(t.target.cols) * SizeOf(t.source.dtype);
    const auto first = static_cast<size_t>(t.begin * kPackBlock) * row_bytes;
    const auto last = static_cast<size_t>(std::min(t.target.rows, t.end * kPackBlock)) * row_bytes;
    std::memcpy(out + first, t.source.bytes.data() + first, last - first);
  }

  // A key row of the file has R columns, which are the target's outputs.
  static void PackTransposed(const Task& t, std::byte* out) {
    const int64_t stride = t.target.rows, cols = t.target.cols;
    const std::byte* source = t.source.bytes.data() + t.row0 * stride * static_cast<int64_t>(SizeOf(t.source.dtype));
    if (t.target.type == WeightType::kBf16) {
      PackBf16Transposed(reinterpret_cast<const bf16*>(source), stride, t.target.rows, cols, t.begin, t.end, out);
      return;
    }
    std::vector<float> turned(static_cast<size_t>(stride * cols));
    for (int64_t k = 0; k < cols; ++k) {
      for (int64_t n = 0; n < stride; ++n) {
        std::memcpy(&turned[static_cast<size_t>(n * cols + k)], source + (k * stride + n) * 4, 4);
      }
    }
    PackF32(turned.data(), t.target.rows, cols, t.begin, t.end, out);
  }

  static void PackWidened(const bf16* w, int64_t rows, int64_t cols, int64_t begin, int64_t end, std::byte* out) {
    // Routers are small (E x D): a float copy of the whole matrix costs nothing next to the experts.
    std::vector<float> wide(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < wide.size(); ++i) {
      bf16 x;
      std::memcpy(&x, w + i, 2);
      wide[i] = ToFloat(x);
    }
    PackF32(wide.data(), rows, cols, begin, end, out);
  }

  uint64_t Fingerprint() const {
    const std::string json = ToJson(config_);
    uint64_t hash = Fnv1a(0xcbf29ce484222325u, json.data(), json.size());
    for (const Task& t : tasks_) {
      if (t.begin != 0) continue;
      const auto sample = t.source.bytes.subspan(t.source.bytes.size() / 2 / 64 * 64);
      hash = Fnv1a(hash, sample.data(), std::min<size_t>(32, sample.size()));
      DropMappedPages(sample);
    }
    return hash;
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  ModelWeights& out_;
  std::string prefix_;
  std::byte* base_ = nullptr;
  size_t used_ = 0;
  std::vector<Task> tasks_;
};

Result<std::shared_ptr<const ModelWeights>> ModelWeights::Load(Context& ctx, const Checkpoint& checkpoint,
                                                               const ModelConfig& config, const ProgressFn& progress) {
  KESTREL_RETURN_IF_ERROR(CheckTensors(config, checkpoint));
  auto weights = std::make_shared<ModelWeights>();
  WeightBinder(checkpoint, config, *weights).Run(ctx, progress);
  return std::shared_ptr<const ModelWeights>(weights);
}

}  // namespace kestrel
