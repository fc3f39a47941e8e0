// Benches of the kernels around the matrix products: depth attention, router, latent attention, at the sizes of the
// release. A roof is what the CPU's multipliers can do at full speed, for attention (see BenchRoofs); 0 where there is
// none.
//
//   for (const std::string& name : AttnBenchNames()) Print(RunAttnBench(ctx, name));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/bench_result.h"
#include "kestrel/tensor/context.h"

namespace kestrel::bench {

// Per core, as measured with the multiply alone in a loop; the caller may give its own.
struct AttnRoofs {
  double bf16_gflops = 225;
  double f32_gflops = 114;
};

std::vector<std::string> AttnBenchNames();
BenchResult RunAttnBench(Context& ctx, std::string_view name, const AttnRoofs& roofs = {});

}  // namespace kestrel::bench
