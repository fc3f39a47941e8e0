// End-to-end numbers of a model folder: decoding at batch 1 and 8, prefill of 512 tokens, the share of AttnRes.
// The code path is the one users run: Model::Forward. Roofs are measured in the same run, between the repetitions.
#pragma once

#include <string>
#include <vector>

#include "bench/bench_result.h"
#include "kestrel/base/result.h"
#include "kestrel/model/model.h"

namespace kestrel::bench {

// What one decoded token must read, in bytes: every weight the token uses once, its states and `context` latents.
// rows > 1: the weights of `experts_touched` distinct experts a layer, the states of every row.
double DecodeBytes(const Model& model, int64_t context, int64_t rows, double experts_touched);
// Floating-point operations the model needs for one prompt of n tokens with one row of logits.
double PrefillFlops(const Model& model, int64_t n);

// decode_b1, decode_b8 (tokens/s; roof: bytes over the read bandwidth), attn_res_share (of decode time at batch 1).
Result<std::vector<BenchResult>> BenchDecode(Context& ctx, const Model& model);
// prefill_512 (tokens/s; roof: flops over oneDNN's bfloat16 GEMM).
Result<std::vector<BenchResult>> BenchPrefill(Context& ctx, const Model& model);

// peak_memory (MB; roof: packed weights plus 10 % plus the state): the most this process ever held, after a prompt of
// 512 tokens and 16 decoded ones. To be called before anything else takes memory.
Result<BenchResult> BenchPeakMemory(Context& ctx, const Model& model);

}  // namespace kestrel::bench
