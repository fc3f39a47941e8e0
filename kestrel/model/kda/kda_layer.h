// Kimi Delta Attention (spec 01): short convolutions, channel-wise decay, delta rule on a [d, d] state per head,
// gated output norm. Reads and advances the states of the pass's segments.
#pragma once

#include "kestrel/model/pass.h"
#include "kestrel/model/weights.h"

namespace kestrel {
// x [rows, D] normed input -> y [rows, D].
void KdaLayer(const Pass& pass, const KdaWeights& w, const float* x, float* y);
}  // namespace kestrel
