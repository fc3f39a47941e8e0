// What every kernel call needs and nobody keeps: threads, scratch memory, instruction set, matmul mode.
// Passed by reference, never stored in a layer; there are no globals.
#pragma once

#include "kestrel/base/cpu.h"
#include "kestrel/base/thread_pool.h"
#include "kestrel/tensor/arena.h"

namespace kestrel {

// How matmul inputs are rounded: kBf16 rounds activations to bfloat16 where the weight is bfloat16 or MXFP4;
// kF32 multiplies float32 activations by the exact value of the weight. Narrow inputs are kept exact in both
// (kernels/matmul/matmul.h kExactCols).
enum class MatMulMode { kBf16, kF32 };

struct Context {
  ThreadPool& pool;
  Arena& arena;
  Isa isa = BestIsa();
  MatMulMode matmul = MatMulMode::kBf16;
};

}  // namespace kestrel
