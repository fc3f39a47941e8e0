// Gated MLA without rotary embedding (spec 01): queries and values meet in a latent of rank + rope channels a token,
// which is all the cache holds.
#pragma once

#include "kestrel/model/pass.h"
#include "kestrel/model/weights.h"

namespace kestrel {
// x [rows, D] normed input -> y [rows, D]. Writes the rows' latents into the states' pages first.
void MlaLayer(const Pass& pass, const MlaWeights& w, const float* x, float* y);
}  // namespace kestrel
