// The greedy token: index of the first largest value, or -1 if any value is NaN or infinite. A sampler that took the
// maximum of NaN logits would answer with token 0 for ever; the caller turns -1 into an error of that one request.
#pragma once

#include <cstdint>

#include "kestrel/base/cpu.h"

namespace kestrel {

int64_t Argmax(Isa isa, const float* x /*[n]*/, int64_t n);  // -1 also for n = 0

}  // namespace kestrel
