#include "kestrel/model/init.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "kestrel/base/cpu.h"
#include "kestrel/base/float_types.h"
#include "kestrel/base/rng.h"
#include "kestrel/formats/mxfp4.h"
#include "kestrel/formats/output_folder.h"
#include "kestrel/model/presets.h"
#include "kestrel/model/tensor_names.h"

namespace kestrel {
namespace {

constexpr double kStddev = 0.02;                     // spec 05
constexpr double kDtLow = 1e-3, kDtHigh = 1e-1;      // spec 05
constexpr int64_t kPartElements = int64_t{1} << 18;  // of one seed; 512 KB of bfloat16 stays in a core's cache
static_assert(kPartElements % kMxfp4Group == 0);

// normal(0, 0.02) in bfloat16 by 65536 equal slices of probability, each stood for by its middle: a quarter of a
// 64-bit draw picks one, 16 times as fast as Box and Muller. Slices are finer than bfloat16 out to two deviations; the
// tail ends at 4.3 deviations.
class NormalTable {
 public:
  NormalTable() {
    for (size_t i = 0; i < kHalf; ++i) {
      const double x = kStddev * Quantile((static_cast<double>(i) + 0.5) / (2.0 * kHalf));
      values_[kHalf + i] = ToBf16(static_cast<float>(x));
      values_[kHalf - 1 - i] = ToBf16(static_cast<float>(-x));
    }
  }
  void Fill(Rng& rng, std::span<bf16> out) const {
    size_t i = 0;
    for (; i + 4 <= out.size(); i += 4) {
      const uint64_t bits = rng.Next();
      out[i] = values_[bits & 0xffff];
      out[i + 1] = values_[bits >> 16 & 0xffff];
      out[i + 2] = values_[bits >> 32 & 0xffff];
      out[i + 3] = values_[bits >> 48];
    }
    for (; i < out.size(); ++i) out[i] = values_[rng.Next() >> 48];
  }

 private:
  static constexpr size_t kHalf = 32768;

  // x >= 0 with P(0 < X < x) = p < 1/2, by Newton's steps on the error function from the tail's bound.
  static double Quantile(double p) {
    double x = std::min(std::sqrt(-2 * std::log(1 - 2 * p)), 2.5066282746310002 * p / (1 - p));
    for (int step = 0; step < 60; ++step) {
      const double density = 0.3989422804014327 * std::exp(-x * x / 2);
      const double move = (p - 0.5 * std::erf(x * 0.7071067811865476)) / density;
      x += std::clamp(move, -0.5, 0.5);
      if (std::abs(move) < 1e-13) break;
    }
    return x;
  }

  std::array<bf16, 2 * kHalf> values_;
};

// FNV-1a: names to numbers, the same on every machine.
uint64_t Hash(std::string_view text, uint64_t seed) {
  uint64_t h = 0xcbf29ce484222325u ^ (seed * 0x9e3779b97f4a7c15u);
  for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return h;
}

// One seed's worth of one tensor, or of an MXFP4 pair.
struct Part {
  size_t tensor;       // of `Plan::entries`; the scales of an MXFP4 pair are the tensor after it
  int64_t begin, end;  // elements of the unpacked matrix
};

struct Plan {
  std::vector<TensorEntry> entries;
  std::vector<ExpectedTensor> expected;  // beside entries
  std::vector<Part> parts;
};

Dtype DtypeOf(TensorKind kind) {
  switch (kind) {
    case TensorKind::kMatrix:
    case TensorKind::kVector:
      return Dtype::kBF16;
    case TensorKind::kFloat:
      return Dtype::kF32;
    default:
      return Dtype::kU8;
  }
}

Plan MakePlan(const ModelConfig& config) {
  Plan plan;
  ForEachExpectedTensor(config, [&](const ExpectedTensor& t) {
    const size_t index = plan.entries.size();
    plan.entries.push_back({t.name, DtypeOf(t.kind), t.shape, 0, 0});
    plan.expected.push_back(t);
    if (t.kind == TensorKind::kMxfp4Scale) return;  // made with its codes
    const int64_t n = NumElements(t.shape) * (t.kind == TensorKind::kMxfp4Packed ? 2 : 1);
    for (int64_t at = 0; at < n; at += kPartElements)
      plan.parts.push_back({index, at, std::min(n, at + kPartElements)});
  });
  return plan;
}

// What a worker needs to make a part; allocated once.
struct Scratch {
  std::vector<bf16> half = std::vector<bf16>(kPartElements);
  std::vector<float> full = std::vector<float>(kPartElements);
  std::vector<uint8_t> packed = std::vector<uint8_t>(kPartElements / 2);
  std::vector<uint8_t> scale = std::vector<uint8_t>(kPartElements / kMxfp4Group);
};

class Maker {
 public:
  Maker(const Plan& plan, uint64_t seed, ShardedWriter& writer) : plan_(plan), seed_(seed), writer_(writer) {}

  // Bytes written.
  Result<uint64_t> Make(const Part& part, Scratch& s) const {
    const ExpectedTensor& t = plan_.expected[part.tensor];
    const auto n = static_cast<size_t>(part.end - part.begin);
    // An MXFP4 expert is the bfloat16 one of the same seed, quantized: the name without its ending.
    const bool packed = t.kind == TensorKind::kMxfp4Packed;
    const std::string_view stem = std::string_view(t.name).substr(0, t.name.rfind(packed ? "_packed" : ""));
    Rng rng(Hash(stem, seed_) + static_cast<uint64_t>(part.begin / kPartElements));
    if (packed) return Mxfp4(part, rng, n, s);
    if (t.kind == TensorKind::kFloat) {
      const std::span<float> out(s.full.data(), n);
      for (float& x : out)
        x = t.init == ExpectedTensor::kDtBias ? DtBias(rng) : t.init == ExpectedTensor::kOnes ? 1.f : 0.f;
      return Write(part.tensor, std::as_bytes(out), static_cast<uint64_t>(part.begin) * sizeof(float));
    }
    const std::span<bf16> out(s.half.data(), n);
    Halves(t.init, t.shape, rng, out);
    return Write(part.tensor, std::as_bytes(out), static_cast<uint64_t>(part.begin) * sizeof(bf16));
  }

 private:
  // The bias whose softplus is dt, log-uniform.
  static float DtBias(Rng& rng) {
    const double dt = std::exp(std::log(kDtLow) + rng.Uniform() * (std::log(kDtHigh) - std::log(kDtLow)));
    return static_cast<float>(std::log(std::expm1(dt)));
  }

  void Halves(ExpectedTensor::Init init, const Shape& shape, Rng& rng, std::span<bf16> out) const {
    switch (init) {
      case ExpectedTensor::kConv: {
        // Spec 05 is silent on convolutions; uniform in +-1/sqrt(width) is what PyTorch gives a depthwise one.
        const double bound = 1 / std::sqrt(static_cast<double>(shape.back()));
        for (bf16& x : out) x = ToBf16(static_cast<float>(bound * (2 * rng.Uniform() - 1)));
        return;
      }
      case ExpectedTensor::kOnes:
        return std::fill(out.begin(), out.end(), ToBf16(1.f));
      case ExpectedTensor::kZeros:
        return std::fill(out.begin(), out.end(), bf16{0});
      default:
        return normal_->Fill(rng, out);
    }
  }

  Result<uint64_t> Mxfp4(const Part& part, Rng& rng, size_t n, Scratch& s) const {
    normal_->Fill(rng, {s.half.data(), n});
    for (size_t i = 0; i < n; ++i) s.full[i] = ToFloat(s.half[i]);
    QuantizeMxfp4({s.full.data(), n}, Mxfp4Rule::kFloor, s.packed.data(), s.scale.data());
    const auto begin = static_cast<uint64_t>(part.begin);
    KESTREL_ASSIGN_OR_RETURN(const uint64_t codes,
                             Write(part.tensor, std::as_bytes(std::span(s.packed.data(), n / 2)), begin / 2));
    KESTREL_ASSIGN_OR_RETURN(
        const uint64_t scales,
        Write(part.tensor + 1, std::as_bytes(std::span(s.scale.data(), n / kMxfp4Group)), begin / kMxfp4Group));
    return codes + scales;
  }

  Result<uint64_t> Write(size_t tensor, std::span<const std::byte> bytes, uint64_t offset) const {
    KESTREL_RETURN_IF_ERROR(writer_.WriteTensor(tensor, bytes, offset));
    return bytes.size();
  }

  const Plan& plan_;
  uint64_t seed_;
  ShardedWriter& writer_;
  std::unique_ptr<const NormalTable> normal_ = std::make_unique<NormalTable>();
};

std::string GenerationConfig(const ModelConfig& c) {
  std::string eos;
  for (const int64_t id : c.eos_token_ids) eos += (eos.empty() ? "" : ", ") + std::to_string(id);
  return fmt::format("{{\n \"max_length\": {},\n \"eos_token_id\": {}\n}}\n", c.max_position_embeddings,
                     c.eos_token_ids.size() == 1 ? eos : "[" + eos + "]");
}

}  // namespace

Status InitCheckpoint(ThreadPool& pool, const std::string& folder, const ModelConfig& config, uint64_t seed,
                      const ByteProgress& progress, uint64_t shard_bytes) {
  const std::string json = ToJson(config);
  KESTREL_RETURN_IF_ERROR(ParseModelConfig(json, folder + "/config.json"));
  KESTREL_ASSIGN_OR_RETURN(OutputFolder out, OutputFolder::Create(folder));
  const Plan plan = MakePlan(config);
  KESTREL_RETURN_IF_ERROR(WriteTextFile(out.Path("config.json"), json));
  KESTREL_RETURN_IF_ERROR(WriteTextFile(out.Path("generation_config.json"), GenerationConfig(config)));
  KESTREL_ASSIGN_OR_RETURN(ShardedWriter writer,
                           ShardedWriter::Create(out.temporary(), plan.entries, {{"format", "pt"}}, shard_bytes));
  const Maker maker(plan, seed, writer);
  std::vector<Scratch> scratch(static_cast<size_t>(pool.size()));
  KESTREL_RETURN_IF_ERROR(RunParts(
      pool, static_cast<int64_t>(plan.parts.size()), writer.tensor_bytes(), progress, [&](int64_t part, int worker) {
        return maker.Make(plan.parts[static_cast<size_t>(part)], scratch[static_cast<size_t>(worker)]);
      }));
  KESTREL_RETURN_IF_ERROR(writer.Commit());
  return out.Commit();
}

Status InitPreset(const std::string& folder, const std::string& preset) {
  KESTREL_ASSIGN_OR_RETURN(const ModelConfig config, PresetConfig(preset));
  ThreadPool pool(PhysicalCores());
  return InitCheckpoint(pool, folder, config, /*seed=*/0, {});
}

}  // namespace kestrel
