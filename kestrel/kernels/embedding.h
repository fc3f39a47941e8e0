// Rows of an embedding table as float32: out[r] = table[ids[r]]. Ids are within the table (checked where text comes
// in).
#pragma once

#include <cstdint>

#include "kestrel/base/float_types.h"
#include "kestrel/tensor/context.h"

namespace kestrel {

void EmbeddingGather(Context& ctx, const bf16* table /*[vocabulary, D]*/, const int32_t* ids /*[rows]*/, int64_t rows,
                     int64_t D, float* out /*[rows, D]*/);
void EmbeddingGather(Context& ctx, const float* table /*[vocabulary, D]*/, const int32_t* ids /*[rows]*/, int64_t rows,
                     int64_t D, float* out /*[rows, D]*/);

}  // namespace kestrel
