// One layer of the stack: mixer and feed-forward, each reading its own mixture over depth (spec 01 "The stack").
#pragma once

#include "kestrel/model/attn_residual/block_bank.h"
#include "kestrel/model/pass.h"
#include "kestrel/model/weights.h"

namespace kestrel {
void Block(const Pass& pass, const LayerWeights& w, BlockBank& bank);
}  // namespace kestrel
