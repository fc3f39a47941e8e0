#include "kestrel/model/attn_residual/block_bank.h"

#include <cstring>

#include "kestrel/base/check.h"
#include "kestrel/kernels/depth_attention.h"
#include "kestrel/kernels/elementwise.h"
#include "kestrel/kernels/rms_norm.h"

namespace kestrel {

BlockBank::BlockBank(const Pass& pass, int pushes)
    : memory_(pass.ctx.arena.Take<float>((pushes + 1) * pass.rows() * pass.config.hidden_size)),
      partial_(memory_),
      stride_(pass.rows() * pass.config.hidden_size) {
  KESTREL_CHECK(pushes < kMaxSources);
}

void BlockBank::Read(const Pass& pass, const ResidualWeights& w, const float* norm, float* out) const {
  ReadRows(pass, w, norm, 0, pass.rows(), out);
}

void BlockBank::ReadRows(const Pass& pass, const ResidualWeights& w, const float* norm, int64_t row, int64_t count,
                         float* out) const {
  const int64_t width = pass.config.hidden_size;
  const float* running = partial_ + row * width;
  if (count_ == 0) {  // one source: its weight is exactly 1
    RmsNorm(pass.ctx, running, norm, pass.eps(), count, width, out);
    return;
  }
  std::array<const float*, kMaxSources> sources;
  for (int i = 0; i < count_; ++i) sources[static_cast<size_t>(i)] = sources_[static_cast<size_t>(i)] + row * width;
  if (pass.probe != nullptr) pass.probe->OnMixture(true);
  DepthAttentionNorm(pass.ctx, {sources.data(), static_cast<size_t>(count_)}, running, w.direction, pass.eps(), count,
                     width, norm, pass.eps(), out);
  if (pass.probe != nullptr) pass.probe->OnMixture(false);
}

void BlockBank::Push() {
  sources_[static_cast<size_t>(count_++)] = partial_;
  partial_ += stride_;
  empty_ = true;
}

void BlockBank::Add(const Pass& pass, const float* y) {
  if (empty_) {
    std::memcpy(partial_, y, static_cast<size_t>(stride_) * sizeof(float));
  } else {
    AddTo(pass.ctx, y, stride_, partial_);
  }
  empty_ = false;
}

}  // namespace kestrel
