// One block of channels of one segment of the short convolution, for the kernels of the instruction sets.
#pragma once

#include <cstdint>

namespace kestrel::kda {

// Pointers at the block's first channel; rows are `stride` apart everywhere.
struct ConvTask {
  const float* tail;    // [width - 1, channels]
  const float* x;       // [rows, channels]
  const float* weight;  // [width, channels]
  float* y;             // [rows, channels]
  int64_t rows, channels, stride;
  int width;
  const float* Input(int64_t row) const { return row < 0 ? tail + (row + width - 1) * stride : x + row * stride; }
};

using ConvRows = void (*)(const ConvTask&);
void ConvRowsPortable(const ConvTask& task);
void ConvRowsAvx2(const ConvTask& task);  // channels of the block a multiple of 16, here and below
void ConvRowsAvx512(const ConvTask& task);

}  // namespace kestrel::kda
