// What every kernel call needs and nobody keeps: threads, scratch memory, instruction set, matmul mode.
// Passed by reference, never stored in a layer; there are no globals.
#pragma once

#include "kestrel/base/cpu.h"
#include "kestrel/base/thread_pool.h"
#include "kestrel/tensor/arena.h"

namespace kestrel {

// How matmul inputs are rounded. kBf16: to bfloat16 where the weight is bfloat16, to int16 with a scale for 32 columns
// where it is MXFP4; narrow inputs of bfloat16 weights are kept exact (kernels/matmul/matmul.h kExactCols). kF32: not
// at all, and sums are double.
enum class MatMulMode { kBf16, kF32 };

struct Context {
  ThreadPool& pool;
  Arena& arena;
  Isa isa = BestIsa();
  MatMulMode matmul = MatMulMode::kBf16;
};

}  // namespace kestrel
