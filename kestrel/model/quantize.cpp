#include "kestrel/model/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <unordered_set>

#include "kestrel/base/float_types.h"
#include "kestrel/formats/atomic_file.h"
#include "kestrel/formats/checkpoint.h"
#include "kestrel/formats/json.h"
#include "kestrel/formats/model_config.h"
#include "kestrel/formats/mxfp4.h"
#include "kestrel/formats/output_folder.h"
#include "kestrel/model/tensor_names.h"

namespace kestrel {
namespace fs = std::filesystem;

namespace {

constexpr int64_t kPartElements = int64_t{1} << 18;  // 1 MB as float: stays in a core's cache
constexpr int64_t kCopyBytes = int64_t{8} << 20;
constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr uint64_t kMaxSideFile = uint64_t{64} << 20;  // tokenizers and chat templates are far below
static_assert(kPartElements % kMxfp4Group == 0);

Status CheckQuantizable(const ModelConfig& c, const std::string& in) {
  if (c.num_experts == 0) {
    return Err(ErrorCode::kInvalidArgument, "[model.quantize] {}: got no routed experts, want some to quantize", in);
  }
  if (c.experts_mxfp4) {
    return Err(ErrorCode::kInvalidArgument, "[model.quantize] {}: the experts are MXFP4 already, want BF16 or F32", in);
  }
  const int64_t inner = c.latent_size > 0 ? c.latent_size : c.hidden_size;
  for (const int64_t width : {inner, c.moe_intermediate_size}) {
    if (width % kMxfp4Group != 0) {
      return Err(ErrorCode::kUnsupported, "[model.quantize] {}: expert width, got {}, want a multiple of {}", in, width,
                 kMxfp4Group);
    }
  }
  return {};
}

struct Part {
  const TensorEntry* source;
  TensorView view;
  size_t target;  // of `Plan::entries`; of an expert the codes, its scales are the next
  bool expert;
  int64_t begin, end;  // elements of an expert, bytes of anything else
};

struct Plan {
  std::vector<TensorEntry> entries;
  std::vector<Part> parts;
  int64_t matrices = 0;
};

Plan MakePlan(const ModelConfig& config, const Checkpoint& checkpoint) {
  std::unordered_set<std::string> experts;
  ForEachExpectedTensor(config, [&](const ExpectedTensor& t) {
    if (t.component == Component::kExperts) experts.insert(t.name);
  });
  Plan plan;
  for (const SafetensorsFile& shard : checkpoint.shards()) {
    for (const TensorEntry& t : shard.tensors()) {
      const bool expert = experts.count(t.name) > 0;
      const size_t target = plan.entries.size();
      if (expert) {
        ++plan.matrices;
        plan.entries.push_back({t.name + "_packed", Dtype::kU8, {t.shape[0], t.shape[1] / 2}, 0, 0});
        plan.entries.push_back({t.name + "_scale", Dtype::kU8, {t.shape[0], t.shape[1] / kMxfp4Group}, 0, 0});
      } else {
        plan.entries.push_back({t.name, t.dtype, t.shape, 0, 0});
      }
      const int64_t n = expert ? NumElements(t.shape) : static_cast<int64_t>(t.end - t.begin);
      const int64_t step = expert ? kPartElements : kCopyBytes;
      for (int64_t at = 0; at < n; at += step) {
        plan.parts.push_back({&t, shard.View(t), target, expert, at, std::min(n, at + step)});
      }
    }
  }
  return plan;
}

struct Scratch {
  std::vector<float> values = std::vector<float>(kPartElements);
  std::vector<float> restored = std::vector<float>(kPartElements);
  std::vector<uint8_t> packed = std::vector<uint8_t>(kPartElements / 2);
  std::vector<uint8_t> scale = std::vector<uint8_t>(kPartElements / kMxfp4Group);
};

// Sums of squares over one part.
struct Squares {
  double error = 0, weight = 0;
};

Status ToFloats(const Part& part, std::span<float> out) {
  const auto begin = static_cast<size_t>(part.begin);
  // Tensors of a file that another program wrote may lie at any byte.
  const std::byte* data = part.view.bytes.data();
  for (size_t i = 0; i < out.size(); ++i) {
    if (part.view.dtype == Dtype::kBF16) {
      bf16 x;
      std::memcpy(&x, data + (begin + i) * sizeof x, sizeof x);
      out[i] = ToFloat(x);
    } else {
      std::memcpy(&out[i], data + (begin + i) * sizeof(float), sizeof(float));
    }
  }
  const auto bad = std::find_if(out.begin(), out.end(), [](float x) { return !std::isfinite(x); });
  if (bad == out.end()) return {};
  return Err(ErrorCode::kNotFinite, "[model.quantize] {}: number {}, got {}, want finite weights", part.source->name,
             part.begin + (bad - out.begin()), *bad);
}

Status QuantizePart(const Part& part, Scratch& s, Squares& squares, ShardedWriter& writer) {
  const auto n = static_cast<size_t>(part.end - part.begin), begin = static_cast<size_t>(part.begin);
  const std::span<float> values(s.values.data(), n), restored(s.restored.data(), n);
  KESTREL_RETURN_IF_ERROR(ToFloats(part, values));
  QuantizeMxfp4(values, Mxfp4Rule::kBestOfTwo, s.packed.data(), s.scale.data());
  DequantizeMxfp4(s.packed.data(), s.scale.data(), restored);
  for (size_t i = 0; i < n; ++i) {
    const double x = values[i], miss = x - restored[i];
    squares.error += miss * miss;
    squares.weight += x * x;
  }
  KESTREL_RETURN_IF_ERROR(writer.WriteTensor(part.target, std::as_bytes(std::span(s.packed.data(), n / 2)), begin / 2));
  return writer.WriteTensor(part.target + 1, std::as_bytes(std::span(s.scale.data(), n / kMxfp4Group)),
                            begin / kMxfp4Group);
}

// The user's own config.json with one key more.
Status WriteConfig(const std::string& in, const ModelConfig& config, const OutputFolder& out) {
  const std::string path = (fs::path(in) / "config.json").string();
  KESTREL_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMaxConfigBytes));
  KESTREL_ASSIGN_OR_RETURN(nlohmann::ordered_json root, ParseStrictJson(text, path));
  ModelConfig quantized = config;
  quantized.experts_mxfp4 = true;
  quantized.nested = false;
  KESTREL_ASSIGN_OR_RETURN(const nlohmann::ordered_json flat, ParseStrictJson(ToJson(quantized), path));
  (config.nested ? root["text_config"] : root)["quantization_config"] = flat["quantization_config"];
  return WriteTextFile(out.Path("config.json"), root.dump(2) + "\n");
}

// Tokenizer, generation settings, chat template, licence: whatever stands beside the weights and is small.
Status CopySideFiles(const std::string& in, const OutputFolder& out) {
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(in, error)) {
    const std::string name = file.path().filename().string();
    const bool weights = file.path().extension() == ".safetensors" || name == "model.safetensors.index.json";
    if (weights || name == "config.json" || name[0] == '.' || !file.is_regular_file(error)) continue;
    if (file.file_size(error) > kMaxSideFile) continue;
    fs::copy_file(file.path(), out.Path(name), error);
    if (error) break;
  }
  if (error) {
    return Err(ErrorCode::kIo, "[model.quantize] {}: tokenizer files can't be copied: {}", in, error.message());
  }
  return {};
}

}  // namespace

Result<QuantizeReport> QuantizeExperts(ThreadPool& pool, const std::string& in, const std::string& out,
                                       const ByteProgress& progress, uint64_t shard_bytes) {
  KESTREL_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(in));
  KESTREL_RETURN_IF_ERROR(CheckQuantizable(config, in));
  KESTREL_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(in));
  KESTREL_RETURN_IF_ERROR(CheckTensors(config, checkpoint));
  KESTREL_ASSIGN_OR_RETURN(OutputFolder folder, OutputFolder::Create(out));
  KESTREL_RETURN_IF_ERROR(WriteConfig(in, config, folder));
  KESTREL_RETURN_IF_ERROR(CopySideFiles(in, folder));
  const Plan plan = MakePlan(config, checkpoint);
  KESTREL_ASSIGN_OR_RETURN(ShardedWriter writer, ShardedWriter::Create(folder.temporary(), plan.entries,
                                                                       checkpoint.shards()[0].metadata(), shard_bytes));

  std::vector<Scratch> scratch(static_cast<size_t>(pool.size()));
  std::vector<Squares> squares(plan.parts.size());  // by part and summed in order, so that threads do not show
  const auto work = [&](int64_t i, int worker) -> Result<uint64_t> {
    const auto index = static_cast<size_t>(i);
    const Part& part = plan.parts[index];
    const auto n = static_cast<uint64_t>(part.end - part.begin), begin = static_cast<uint64_t>(part.begin);
    if (part.expert) {
      KESTREL_RETURN_IF_ERROR(QuantizePart(part, scratch[static_cast<size_t>(worker)], squares[index], writer));
      return n * SizeOf(part.view.dtype);
    }
    KESTREL_RETURN_IF_ERROR(writer.WriteTensor(part.target, part.view.bytes.subspan(begin, n), begin));
    return n;
  };
  const uint64_t before = checkpoint.tensor_bytes();
  KESTREL_RETURN_IF_ERROR(RunParts(pool, static_cast<int64_t>(plan.parts.size()), before, progress, work));
  KESTREL_RETURN_IF_ERROR(writer.Commit());
  KESTREL_RETURN_IF_ERROR(folder.Commit());

  Squares sum;
  for (const Squares& s : squares) sum = {sum.error + s.error, sum.weight + s.weight};
  return QuantizeReport{plan.matrices, before, writer.tensor_bytes(),
                        sum.weight > 0 ? std::sqrt(sum.error / sum.weight) : 0};
}

}  // namespace kestrel
