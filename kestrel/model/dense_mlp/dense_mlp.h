// down(act(gate x, up x)): the dense layers, and the shared experts of Stable LatentMoE.
#pragma once

#include "kestrel/model/pass.h"
#include "kestrel/model/weights.h"

namespace kestrel {
// a = situ(gate, up) or silu(gate) * up by the config, n elements each; out may be gate.
void Activate(const Pass& pass, const float* gate, const float* up, int64_t n, float* out);
// x [rows, D] -> y [rows, D].
void DenseMlp(const Pass& pass, const DenseMlpWeights& w, const float* x, float* y);
}  // namespace kestrel
