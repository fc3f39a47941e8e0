// What every layer of one forward pass needs: kernels' context, the config, the batch.
#pragma once

#include "kestrel/formats/model_config.h"
#include "kestrel/model/batch.h"
#include "kestrel/tensor/context.h"

namespace kestrel {

struct Pass {
  Context& ctx;
  const ModelConfig& config;
  const Batch& batch;
  int layer = 0;
  Probe* probe = nullptr;

  int64_t rows() const { return static_cast<int64_t>(batch.ids.size()); }
  float eps() const { return static_cast<float>(config.rms_norm_eps); }
  float* Rows(int64_t width) const { return ctx.arena.Take<float>(rows() * width); }  // [rows, width]
};

}  // namespace kestrel
