#include "bench/model_bench.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>

#include "bench/median.h"
#include "bench/onednn_peak.h"
#include "bench/roofline.h"
#include "kestrel/base/aligned.h"
#include "kestrel/base/clock.h"
#include "kestrel/base/rng.h"

namespace kestrel::bench {
namespace {

// The read roof, to be measured again and again inside one run.
class ReadRoof {
 public:
  // Pages that were never written are all one page of zeros, which a cache holds.
  ReadRoof() { std::memset(buffer_.data(), 1, buffer_.size()); }

  // Bytes a second of the best loop over a buffer that no cache holds.
  double Measure(ThreadPool& pool) {
    double best = 0;
    for (int variant = 0; variant < kReadVariants; ++variant) {
      const double seconds = ReadSeconds(pool, {buffer_.data(), buffer_.size()}, variant);
      best = std::max(best, static_cast<double>(buffer_.size()) / seconds);
    }
    return best;
  }

 private:
  AlignedBuffer buffer_{size_t{512} << 20};
};

double Bytes(const PackedMatrix& m) {
  const double per = m.type == WeightType::kF32 ? 4 : m.type == WeightType::kBf16 ? 2 : 17.0 / 32;
  return static_cast<double>(m.rows) * static_cast<double>(m.cols) * per;
}
double Size(const PackedMatrix& m) { return static_cast<double>(m.rows) * static_cast<double>(m.cols); }

// Sums f over the matrices that every token uses, and over one expert's.
template <class F>
void Visit(const ModelConfig& c, const LayerWeights& w, int layer, F f, double* trunk, double* expert) {
  double t = 0;
  if (c.is_kda[static_cast<size_t>(layer)]) {
    for (const PackedMatrix* m :
         {&w.kda.q, &w.kda.k, &w.kda.v, &w.kda.f_a, &w.kda.f_b, &w.kda.b, &w.kda.g, &w.kda.g_b, &w.kda.o})
      t += f(*m);
  } else {
    for (const PackedMatrix* m : {&w.mla.q_a, &w.mla.q, &w.mla.kv_a, &w.mla.g, &w.mla.o}) t += f(*m);
    for (const auto* list : {&w.mla.key_absorbed, &w.mla.value})
      for (const PackedMatrix& m : *list) t += f(m);
  }
  if (c.is_moe(layer)) {
    for (const PackedMatrix* m : {&w.moe.router, &w.moe.latent_down, &w.moe.latent_up, &w.moe.shared.gate,
                                  &w.moe.shared.up, &w.moe.shared.down})
      t += f(*m);
    const ExpertWeights& e = w.moe.experts[0];
    *expert = f(e.w1) + f(e.w3) + f(e.w2);
  } else {
    for (const PackedMatrix* m : {&w.mlp.gate, &w.mlp.up, &w.mlp.down}) t += f(*m);
    *expert = 0;
  }
  *trunk = t;
}

// Counts the distinct experts that the rows of a step use, averaged over layers and steps.
struct ExpertCounter : Probe {
  void OnRows(int, const char*, const float*, int64_t, int64_t) override {}
  void OnExperts(int, const int32_t* ids, int64_t rows, int64_t k) override {
    total += static_cast<double>(std::set<int32_t>(ids, ids + rows * k).size());
    ++layers;
  }
  double total = 0;
  int64_t layers = 0;
};

struct MixtureTimer : Probe {
  void OnRows(int, const char*, const float*, int64_t, int64_t) override {}
  void OnExperts(int, const int32_t*, int64_t, int64_t) override {}
  void OnMixture(bool begin) override {
    if (begin) {
      since = NowSeconds();
    } else {
      seconds += NowSeconds() - since;
    }
  }
  double seconds = 0, since = 0;
};

// Several sequences, each with its own prompt read in, that decode in step.
struct Decoding {
  Decoding(Context& c, const Model& m, int64_t n)
      : ctx(c), model(m), logits(static_cast<size_t>(n * m.config().vocab_size)) {
    Rng rng(1);
    states.reserve(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      states.push_back(model.NewState());
      std::vector<int32_t> prompt(64);
      for (int32_t& id : prompt) id = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(m.config().vocab_size)));
      const Segment segment{&states.back(), 0, 64, Phase::kPrefill};
      if (!states.back().Reserve(512) || !model.Forward(ctx, {prompt, {&segment, 1}, {}}, nullptr)) std::abort();
      ids.push_back(prompt[0]);
      rows.push_back(static_cast<int32_t>(i));
    }
    for (int64_t i = 0; i < n; ++i) segments.push_back({&states[static_cast<size_t>(i)], i, 1, Phase::kDecode});
  }

  Status Step(Probe* probe) {
    KESTREL_RETURN_IF_ERROR(model.Forward(ctx, {ids, segments, rows}, logits.data(), probe));
    const auto vocab = static_cast<size_t>(model.config().vocab_size);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto first = logits.begin() + static_cast<int64_t>(i * vocab);
      ids[i] = static_cast<int32_t>(std::max_element(first, first + static_cast<int64_t>(vocab)) - first);
    }
    return {};
  }

  Context& ctx;
  const Model& model;
  std::vector<float> logits;
  std::vector<SequenceState> states;
  std::vector<int32_t> ids, rows;
  std::vector<Segment> segments;
};

// The most memory this process ever held (Linux: VmHWM); 0 where the system does not say.
double PeakBytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("VmHWM:")) return 1024 * std::strtod(line.c_str() + 6, nullptr);
  }
  return 0;
}

constexpr int kRounds = 7, kSteps = 8;

// Seconds a step (median over rounds of kSteps), and the roof measured between the rounds.
Status TimeSteps(Decoding& decoding, double* step_s, double* roof, double* spread) {
  std::vector<double> times, roofs;
  ReadRoof read;
  (void)read.Measure(decoding.ctx.pool);
  for (int i = 0; i < 3; ++i) KESTREL_RETURN_IF_ERROR(decoding.Step(nullptr));
  for (int round = 0; round < kRounds; ++round) {
    roofs.push_back(read.Measure(decoding.ctx.pool));
    KESTREL_RETURN_IF_ERROR(decoding.Step(nullptr));
    const double start = NowSeconds();
    for (int i = 0; i < kSteps; ++i) KESTREL_RETURN_IF_ERROR(decoding.Step(nullptr));
    times.push_back((NowSeconds() - start) / kSteps);
  }
  *step_s = Median(times);
  *roof = Median(roofs);
  *spread = Spread(times);
  return {};
}

}  // namespace

double DecodeBytes(const Model& model, int64_t context, int64_t rows, double experts_touched) {
  const ModelConfig& c = model.config();
  double weights = Bytes(model.weights().lm_head);
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    double trunk = 0, expert = 0;
    Visit(c, model.weights().layer(i), i, Bytes, &trunk, &expert);
    weights += trunk + expert * experts_touched;
  }
  // A KDA head's state is read every token; it is written every sixteenth, which is left out. Latents are bfloat16.
  double state = 0;
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    state += c.is_kda[static_cast<size_t>(i)]
                 ? static_cast<double>(c.kda.heads * c.kda.head_dim * c.kda.head_dim) * 4
                 : static_cast<double>(context * (c.kv_lora_rank + c.qk_rope_head_dim)) * 2;
  }
  return weights + state * static_cast<double>(rows);
}

double PrefillFlops(const Model& model, int64_t n) {
  const ModelConfig& c = model.config();
  double per_token = 0;
  for (int i = 0; i < c.num_hidden_layers; ++i) {
    double trunk = 0, expert = 0;
    Visit(c, model.weights().layer(i), i, Size, &trunk, &expert);
    per_token += 2 * (trunk + expert * static_cast<double>(c.experts_per_token));
    if (c.is_kda[static_cast<size_t>(i)]) {
      per_token += 6.0 * static_cast<double>(c.kda.heads * c.kda.head_dim * c.kda.head_dim);  // two reads, one update
    } else {
      const auto pair =
          static_cast<double>(c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim + c.v_head_dim));
      per_token += 2 * pair * static_cast<double>(n + 1) / 2;
    }
  }
  return per_token * static_cast<double>(n) + 2 * Size(model.weights().lm_head);
}

Result<std::vector<BenchResult>> BenchDecode(Context& ctx, const Model& model) {
  std::vector<BenchResult> out;
  double single = 0;
  for (const int64_t batch : {1, 8}) {
    Decoding decoding(ctx, model, batch);
    double step_s = 0, roof = 0, spread = 0;
    KESTREL_RETURN_IF_ERROR(TimeSteps(decoding, &step_s, &roof, &spread));
    ExpertCounter counter;
    for (int i = 0; i < 4; ++i) KESTREL_RETURN_IF_ERROR(decoding.Step(&counter));
    const double touched = counter.layers > 0 ? counter.total / static_cast<double>(counter.layers) : 0;
    const double bytes = DecodeBytes(model, decoding.states[0].position(), batch, touched);
    const double tps = static_cast<double>(batch) / step_s, roof_tps = static_cast<double>(batch) * roof / bytes;
    out.push_back({batch == 1 ? "decode_b1" : "decode_b8", tps, "tokens/s", roof_tps, tps / roof_tps, spread});
    if (batch != 1) continue;
    single = step_s;
    MixtureTimer timer;
    constexpr int kTimed = 32;
    for (int i = 0; i < kTimed; ++i) KESTREL_RETURN_IF_ERROR(decoding.Step(&timer));
    const double share = timer.seconds / kTimed;
    out.push_back({"attn_res_share", share * 1e6, "us/token", single * 1e6, share / single});
  }
  return out;
}

Result<std::vector<BenchResult>> BenchPrefill(Context& ctx, const Model& model) {
  constexpr int64_t kTokens = 512;
  Rng rng(2);
  std::vector<int32_t> prompt(kTokens);
  for (int32_t& id : prompt) id = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(model.config().vocab_size)));
  std::vector<float> logits(static_cast<size_t>(model.config().vocab_size));
  const int32_t last = kTokens - 1;
  std::vector<double> times, peaks;
  constexpr int64_t kRows = 128, kWide = 4096;
  OneDnnMatMul yardstick(kRows, kWide, kWide);
  for (int round = 0; round < 6; ++round) {
    if (yardstick.available()) {
      std::vector<double> seconds;
      for (int i = 0; i < 9; ++i) seconds.push_back(yardstick.Seconds());
      peaks.push_back(2.0 * kRows * kWide * kWide / Median(seconds));
    }
    SequenceState state = model.NewState();
    KESTREL_RETURN_IF_ERROR(state.Reserve(kTokens));
    const Segment segment{&state, 0, kTokens, Phase::kPrefill};
    const double start = NowSeconds();
    KESTREL_RETURN_IF_ERROR(model.Forward(ctx, {prompt, {&segment, 1}, {&last, 1}}, logits.data()));
    if (round > 0) times.push_back(NowSeconds() - start);
  }
  const double tps = kTokens / Median(times), per_token = PrefillFlops(model, kTokens) / kTokens;
  const double roof = peaks.empty() ? 0 : Median(peaks) / per_token;
  return std::vector<BenchResult>{{"prefill_512", tps, "tokens/s", roof, roof > 0 ? tps / roof : 0, Spread(times)}};
}

Result<BenchResult> BenchPeakMemory(Context& ctx, const Model& model) {
  constexpr int64_t kTokens = 512, kDecoded = 16;
  SequenceState state = model.NewState();
  std::vector<int32_t> ids(kTokens, 1);
  std::vector<float> logits(static_cast<size_t>(model.config().vocab_size));
  const Segment prompt{&state, 0, kTokens, Phase::kPrefill}, token{&state, 0, 1, Phase::kDecode};
  const int32_t last = kTokens - 1, only = 0;
  KESTREL_RETURN_IF_ERROR(model.Forward(ctx, {ids, {&prompt, 1}, {&last, 1}}, logits.data()));
  for (int64_t i = 0; i < kDecoded; ++i) {
    KESTREL_RETURN_IF_ERROR(model.Forward(ctx, {{ids.data(), 1}, {&token, 1}, {&only, 1}}, logits.data()));
  }
  const double roof = 1.1 * static_cast<double>(model.weights().resident_bytes()) + static_cast<double>(state.bytes());
  const double peak = PeakBytes();
  return BenchResult{"peak_memory", peak / 1e6, "MB", roof / 1e6, peak / roof};
}

}  // namespace kestrel::bench
