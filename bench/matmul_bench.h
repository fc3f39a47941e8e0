// Matmul against its roofs, measured alternately in one run: bytes of weights read against plain reads of the same
// buffer (GEMV), FLOP against oneDNN's bfloat16 matmul 128 x 4096 x 4096 (GEMM). Every result is checked afterwards.
//
//   for (const std::string& name : MatMulBenchNames()) Print(RunMatMulBench(name));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/bench_result.h"

namespace kestrel::bench {

std::vector<std::string> MatMulBenchNames();
// A name of the list above; value -1 means that the product was wrong.
BenchResult RunMatMulBench(std::string_view name, double seconds = 3.0);

}  // namespace kestrel::bench
