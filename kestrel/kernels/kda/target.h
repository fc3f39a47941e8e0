// KESTREL_TARGET_BEGIN("avx2,fma") .. KESTREL_TARGET_END: functions between them are compiled for these instruction
// sets, whatever the rest of the program is compiled for. Include everything else before: an inline function of a
// common header must not be compiled for a CPU that may not be there.
#pragma once

#define KESTREL_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define KESTREL_TARGET_BEGIN(isa) \
  KESTREL_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define KESTREL_TARGET_END KESTREL_PRAGMA(clang attribute pop)
#else
// The formatter does not come to rest here.
// clang-format off
// g++ 12 calls its own _mm512_undefined_ps() uninitialised (GCC bug 105593).
#define KESTREL_TARGET_BEGIN(isa)                                \
  KESTREL_PRAGMA(GCC push_options)                               \
  KESTREL_PRAGMA(GCC target(isa))                                \
  KESTREL_PRAGMA(GCC diagnostic push)                            \
  KESTREL_PRAGMA(GCC diagnostic ignored "-Wmaybe-uninitialized") \
      KESTREL_PRAGMA(GCC diagnostic ignored "-Wuninitialized")
#define KESTREL_TARGET_END KESTREL_PRAGMA(GCC diagnostic pop) KESTREL_PRAGMA(GCC pop_options)
// clang-format on
#endif
