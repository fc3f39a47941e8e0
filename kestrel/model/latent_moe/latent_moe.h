// Stable LatentMoE (spec 01): a router on the full-width input picks k experts; they work in a narrow latent space;
// shared experts run on the full input. Without a latent (Kimi Linear) the experts read x itself.
#pragma once

#include "kestrel/model/pass.h"
#include "kestrel/model/weights.h"

namespace kestrel {
// x [rows, D] -> y [rows, D].
void LatentMoe(const Pass& pass, const LatentMoeWeights& w, const float* x, float* y);
}  // namespace kestrel
