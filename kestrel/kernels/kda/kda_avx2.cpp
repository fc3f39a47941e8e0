// The KDA head and the short convolution for AVX2 and FMA.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "kestrel/kernels/kda/kda_head.h"
#include "kestrel/kernels/kda/short_conv_rows.h"
#include "kestrel/kernels/kda/target.h"

KESTREL_TARGET_BEGIN("avx2,fma")
namespace kestrel::kda::avx2 {
#define KESTREL_KDA_INT16 0
#include "kestrel/kernels/kda/vec_avx2.inc"
//
#include "kestrel/kernels/kda/vec_math.inc"
//
#include "kestrel/kernels/kda/kda_vector.inc"
//
#include "kestrel/kernels/kda/short_conv_vector.inc"
}  // namespace kestrel::kda::avx2

namespace kestrel::kda {
void ForwardHeadAvx2(const HeadTask& task) { avx2::ForwardHead(task); }
void ConvRowsAvx2(const ConvTask& task) { avx2::ConvRows(task); }
}  // namespace kestrel::kda
KESTREL_TARGET_END
#endif
