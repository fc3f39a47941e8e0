// The KDA head for AVX-512 with VDPBF16PS; the convolution has nothing to gain from it.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "kestrel/kernels/kda/kda_head.h"
#include "kestrel/kernels/kda/target.h"

KESTREL_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
namespace kestrel::kda::avx512bf16 {
#define KESTREL_KDA_BF16 1
#include "kestrel/kernels/kda/vec_avx512.inc"
//
#include "kestrel/kernels/kda/vec_math.inc"
//
#include "kestrel/kernels/kda/kda_vector.inc"
}  // namespace kestrel::kda::avx512bf16

namespace kestrel::kda {
void ForwardHeadAvx512Bf16(const HeadTask& task) { avx512bf16::ForwardHead(task); }
}  // namespace kestrel::kda
KESTREL_TARGET_END
#endif
