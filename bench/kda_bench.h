// Yardsticks of the KDA kernel. The head has Kimi K3's size, 128 keys by 128 values.
//
//   for (const BenchResult& r : BenchKda(context, read_bytes_per_second)) Print(r);
#pragma once

#include <vector>

#include "bench/bench_result.h"
#include "kestrel/tensor/context.h"

namespace kestrel::bench {

// One token for each of 64 layers of 96 heads (0.5 GB of states: from memory, as in the model), us a layer's token.
// Roof: the bytes touched on average over a tile, at the machine's read rate; ratio: roof / value.
BenchResult BenchKdaStep(Context& context, double read_bytes_per_second);

// 1024 tokens of 32 heads, us a token; no roof.
BenchResult BenchKdaChunk(Context& context, MatMulMode mode);

// kda_step, kda_chunk and kda_chunk_f32.
std::vector<BenchResult> BenchKda(Context& context, double read_bytes_per_second);

}  // namespace kestrel::bench
