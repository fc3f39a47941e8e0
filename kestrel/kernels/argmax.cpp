#include "kestrel/kernels/argmax.h"

#include "kestrel/kernels/simd/vector_table.h"

namespace kestrel {

int64_t Argmax(Isa isa, const float* x, int64_t n) {
  if (n <= 0) return -1;
  float max;
  if (!GetVectorTable(isa).max_finite(x, n, &max)) return -1;
  int64_t i = 0;
  while (x[i] != max) ++i;
  return i;
}

}  // namespace kestrel
