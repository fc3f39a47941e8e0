// Benches of the kernels around the matrix products: depth attention, router, latent attention, at the sizes of the
// release. Absolute rates, without a roof.
//
//   for (const std::string& name : AttnBenchNames()) Print(RunAttnBench(ctx, name));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/bench_result.h"
#include "kestrel/tensor/context.h"

namespace kestrel::bench {

std::vector<std::string> AttnBenchNames();
BenchResult RunAttnBench(Context& ctx, std::string_view name);

}  // namespace kestrel::bench
