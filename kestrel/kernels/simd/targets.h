// Which Highway targets a file is compiled for, and which of them an Isa means. Include first in a per-target file;
// KESTREL_PICK_TARGET(isa, NAME) then is NAME of that target's namespace.
#pragma once

// SSSE3 and SSE4 would only serve machines from before 2013; AVX3_DL and newer add nothing that these kernels use.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#if defined(__x86_64__)
#define KESTREL_PICK_TARGET(isa, NAME)                               \
  ((isa) == Isa::kAvx512 || (isa) == Isa::kAvx512Bf16 ? N_AVX3::NAME \
   : (isa) == Isa::kAvx2                              ? N_AVX2::NAME \
                                                      : HWY_STATIC_NAMESPACE_OF_KESTREL::NAME)
#else
#define KESTREL_PICK_TARGET(isa, NAME) ((void)(isa), HWY_STATIC_NAMESPACE_OF_KESTREL::NAME)
#endif
// The namespace that Highway gives the baseline: the last one that foreach_target.h compiles.
#define HWY_STATIC_NAMESPACE_OF_KESTREL HWY_NAMESPACE
