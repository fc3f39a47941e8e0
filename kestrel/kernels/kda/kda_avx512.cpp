// The KDA head and the short convolution for AVX-512 (F, BW, DQ, VL, VNNI).
#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "kestrel/kernels/kda/kda_head.h"
#include "kestrel/kernels/kda/short_conv_rows.h"
#include "kestrel/kernels/kda/target.h"

KESTREL_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")
namespace kestrel::kda::avx512 {
#define KESTREL_KDA_INT16 1
#include "kestrel/kernels/kda/vec_avx512.inc"
//
#include "kestrel/kernels/kda/vec_math.inc"
//
#include "kestrel/kernels/kda/kda_vector.inc"
//
#include "kestrel/kernels/kda/short_conv_vector.inc"
}  // namespace kestrel::kda::avx512

namespace kestrel::kda {
void ForwardHeadAvx512(const HeadTask& task) { avx512::ForwardHead(task); }
void ConvRowsAvx512(const ConvTask& task) { avx512::ConvRows(task); }
}  // namespace kestrel::kda
KESTREL_TARGET_END
#endif
