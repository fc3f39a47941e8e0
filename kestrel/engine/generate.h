// One sequence from prompt to end: prefill in chunks, then token by token, streamed.
//
//   Generation g(ctx, model, options);
//   KESTREL_ASSIGN_OR_RETURN(GenerateResult r, g.Run(prompt, state, [](int32_t id) { ...; return true; }));
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kestrel/engine/sampler.h"
#include "kestrel/model/model.h"
#include "kestrel/text/tokenizer.h"

namespace kestrel {

inline constexpr int64_t kPrefillChunk = 512;  // rows of one pass: enough for the matmuls to run at their peak

struct GenerateOptions {
  int64_t max_tokens = 128;
  SamplingOptions sampling;
  std::vector<std::string> stop;  // the text ends before the first of them
  bool ignore_eos = false;
  bool feed_last = false;  // the state also takes in the last token, so that it can be saved
};

struct GenerateResult {
  std::vector<int32_t> ids;
  std::string text;           // empty without a tokenizer
  std::string finish_reason;  // stop, length
  double prefill_s = 0, decode_s = 0;
};

// Reads the prompt into the state; logits [V] of its last row where wanted (null: not).
Status Prefill(Context& ctx, const Model& model, std::span<const int32_t> prompt, SequenceState& state, float* logits,
               const std::function<void(int64_t done)>& progress = {});

// tokenizer may be null: then ids only, and no stop strings. on_text gets the text as it grows, never half a character
// and never a part of a stop string; on_id every id. An empty prompt is kInvalidArgument.
Result<GenerateResult> Generate(Context& ctx, const Model& model, const Tokenizer* tokenizer,
                                std::span<const int32_t> prompt, SequenceState& state, const GenerateOptions& options,
                                const std::function<void(int32_t id, std::string_view text)>& on_token,
                                const std::function<void(int64_t done)>& progress = {});

}  // namespace kestrel
