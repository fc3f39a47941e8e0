// kestrel logits: what the model says at every position, and what its layers computed, as safetensors.
#include <algorithm>
#include <cstring>
#include <map>

#include "apps/commands.h"
#include "apps/common.h"
#include "kestrel/engine/generate.h"
#include "kestrel/formats/safetensors.h"

namespace kestrel {
namespace {

struct Options {
  std::string model, ids, out;
  int64_t chunk = kPrefillChunk;
  bool layers = false;
  RuntimeOptions runtime;
};

// Collects rows by tensor name over the chunks of a prompt.
class Collector : public Probe {
 public:
  struct Tensor {
    int64_t width = 0;
    Dtype dtype = Dtype::kF32;
    std::vector<std::byte> bytes;
  };

  void OnRows(int layer, const char* what, const float* x, int64_t rows, int64_t width) override {
    Append(fmt::format("layer.{}.{}", layer, what), Dtype::kF32, x, rows, width);
  }
  void OnExperts(int layer, const int32_t* ids, int64_t rows, int64_t k) override {
    const std::vector<int64_t> wide(ids, ids + rows * k);
    Append(fmt::format("layer.{}.expert_ids", layer), Dtype::kI64, wide.data(), rows, k);
  }
  void Append(const std::string& name, Dtype dtype, const void* x, int64_t rows, int64_t width) {
    Tensor& t = tensors_[name];
    t.width = width;
    t.dtype = dtype;
    const auto* bytes = static_cast<const std::byte*>(x);
    t.bytes.insert(t.bytes.end(), bytes, bytes + static_cast<size_t>(rows * width) * SizeOf(dtype));
  }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

 private:
  std::map<std::string, Tensor> tensors_;
};

Status Run(const Options& o) {
  KESTREL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseIds(o.ids));
  const auto total = static_cast<int64_t>(ids.size());
  if (total == 0) return Err(ErrorCode::kInvalidArgument, "[apps.logits] --ids: got no ids, want at least one");
  Runtime runtime(o.runtime);
  Context& ctx = runtime.context();
  Progress loading("loading", 1);
  KESTREL_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                           Model::Load(ctx, o.model, [&](double done, double all) { loading.Update(done / all); }));
  SequenceState state = model->NewState();
  const int64_t vocab = model->config().vocab_size, chunk = std::min(o.chunk, total);
  std::vector<float> logits(static_cast<size_t>(chunk * vocab));
  std::vector<int32_t> rows(static_cast<size_t>(chunk));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
  Collector collector;
  Progress progress("logits", static_cast<double>(total));
  for (int64_t first = 0; first < total; first += chunk) {
    const int64_t n = std::min(chunk, total - first);
    const Segment segment{&state, 0, n, Phase::kPrefill};
    const Batch batch{std::span(ids).subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
                      {&segment, 1},
                      std::span(rows).first(static_cast<size_t>(n))};
    KESTREL_RETURN_IF_ERROR(model->Forward(ctx, batch, logits.data(), o.layers ? &collector : nullptr));
    collector.Append("logits", Dtype::kF32, logits.data(), n, vocab);
    progress.Update(static_cast<double>(first + n));
  }
  std::vector<TensorToWrite> out;
  for (const auto& [name, t] : collector.tensors()) out.push_back({name, t.dtype, {total, t.width}, t.bytes});
  return WriteSafetensors(o.out, out, {});
}

}  // namespace

void AddLogitsCommand(CLI::App& root, int& exit_code) {
  auto o = std::make_shared<Options>();
  CLI::App* app = root.add_subcommand("logits", "Write the logits of every position as safetensors");
  app->add_option("MODEL", o->model, "model folder")->required();
  app->add_option("--ids", o->ids, "token ids, e.g. 1,2,3")->required();
  app->add_option("--out", o->out, "file to write: logits [T, vocab] F32")->required();
  app->add_option("--chunk", o->chunk, "rows of one pass; the result does not depend on it")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app->add_flag("--layers", o->layers, "also layer.N.mixer, .ffn, .partial [T, D] and .expert_ids [T, k], best first");
  o->runtime.AddTo(app);
  app->callback([o, &exit_code] {
    const Status status = Run(*o);
    exit_code = status ? 0 : Fail(status.error());
  });
}

}  // namespace kestrel
