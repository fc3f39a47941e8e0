#include "kestrel/engine/generate.h"

#include <algorithm>
#include <optional>

#include "kestrel/base/clock.h"
#include "kestrel/engine/stop_matcher.h"
#include "kestrel/text/incremental_decoder.h"

namespace kestrel {

Status Prefill(Context& ctx, const Model& model, std::span<const int32_t> prompt, SequenceState& state, float* logits,
               const std::function<void(int64_t)>& progress) {
  const auto total = static_cast<int64_t>(prompt.size());
  KESTREL_RETURN_IF_ERROR(state.Reserve(state.position() + total));
  for (int64_t first = 0; first < total; first += kPrefillChunk) {
    const int64_t rows = std::min(kPrefillChunk, total - first);
    const Segment segment{&state, 0, rows, Phase::kPrefill};
    const auto last = static_cast<int32_t>(rows - 1);
    const bool wanted = logits != nullptr && first + rows == total;
    KESTREL_RETURN_IF_ERROR(model.Forward(ctx,
                                          {prompt.subspan(static_cast<size_t>(first), static_cast<size_t>(rows)),
                                           {&segment, 1},
                                           {&last, wanted ? size_t{1} : size_t{0}}},
                                          logits));
    if (progress) progress(first + rows);
  }
  return {};
}

namespace {

bool IsEos(const ModelConfig& config, int32_t id) {
  return std::find(config.eos_token_ids.begin(), config.eos_token_ids.end(), id) != config.eos_token_ids.end();
}

Status Step(Context& ctx, const Model& model, int32_t id, SequenceState& state, float* logits) {
  const Segment segment{&state, 0, 1, Phase::kDecode};
  const int32_t row = 0;
  return model.Forward(ctx, {{&id, 1}, {&segment, 1}, {&row, logits != nullptr ? size_t{1} : size_t{0}}}, logits);
}

}  // namespace

Result<GenerateResult> Generate(Context& ctx, const Model& model, const Tokenizer* tokenizer,
                                std::span<const int32_t> prompt, SequenceState& state, const GenerateOptions& options,
                                const std::function<void(int32_t, std::string_view)>& on_token,
                                const std::function<void(int64_t)>& progress) {
  if (prompt.empty()) {
    return Err(ErrorCode::kInvalidArgument, "[engine.generate] prompt: got no tokens, want at least one");
  }
  GenerateResult result;
  result.finish_reason = "length";
  const auto total = static_cast<int64_t>(prompt.size());
  KESTREL_RETURN_IF_ERROR(state.Reserve(state.position() + total + std::max<int64_t>(options.max_tokens, 0)));
  std::vector<float> logits(static_cast<size_t>(model.config().vocab_size));
  Sampler sampler(options.sampling, model.config().vocab_size);
  StopMatcher stop(options.stop);
  std::optional<IncrementalDecoder> decoder;
  if (tokenizer != nullptr) decoder.emplace(*tokenizer);

  const double start = NowSeconds();
  KESTREL_RETURN_IF_ERROR(
      Prefill(ctx, model, prompt, state, options.max_tokens > 0 ? logits.data() : nullptr, progress));
  const double prefilled = NowSeconds();
  result.prefill_s = prefilled - start;
  for (int64_t i = 0; i < options.max_tokens; ++i) {
    KESTREL_ASSIGN_OR_RETURN(const int32_t id, sampler.Sample(logits));
    result.ids.push_back(id);
    const bool end = !options.ignore_eos && IsEos(model.config(), id);
    const std::string text = decoder && !end ? stop.Push(decoder->Push(id)) : std::string();
    result.text += text;
    if (on_token) on_token(id, text);
    const bool last = end || stop.stopped() || i + 1 == options.max_tokens;
    if (end || stop.stopped()) result.finish_reason = "stop";
    if (!last || options.feed_last)
      KESTREL_RETURN_IF_ERROR(Step(ctx, model, id, state, last ? nullptr : logits.data()));
    if (last) break;
  }
  result.decode_s = NowSeconds() - prefilled;
  if (decoder) {
    const std::string rest = stop.Push(decoder->Finish()) + stop.Finish();
    result.text += rest;
    if (on_token && !rest.empty()) on_token(-1, rest);
  }
  return result;
}

}  // namespace kestrel
