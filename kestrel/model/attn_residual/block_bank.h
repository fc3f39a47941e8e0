// The depth side of the model (Block Attention Residuals, spec 01 "The stack"): the finished blocks' sums and the
// running sum of the block in progress, for the rows of one pass. Each sub-layer reads a softmax mixture of them.
// Without AttnRes (Kimi Linear) there are no finished blocks and reading gives the running sum: a plain residual stack.
//
//   bank.Read(weights.mixer_residual, weights.input_norm, h);   // h = rms(mixture)
//   bank.Push();                                                // where the layer opens a block
//   bank.Add(mixer_out);
#pragma once

#include <array>

#include "kestrel/model/pass.h"
#include "kestrel/model/weights.h"

namespace kestrel {

class BlockBank {
 public:
  // Takes its memory from the pass's arena: (pushes + 1) * [rows, D].
  BlockBank(const Pass& pass, int pushes);

  float* embedding() { return partial_; }  // [rows, D], to be filled before the first Read
  // out [rows, D] = rms(sum_v softmax(score)_v v; norm, eps) over the finished blocks and the running sum.
  void Read(const Pass& pass, const ResidualWeights& w, const float* norm, float* out) const;
  // The same for `count` rows from `row` on: out [count, D].
  void ReadRows(const Pass& pass, const ResidualWeights& w, const float* norm, int64_t row, int64_t count,
                float* out) const;
  // The running sum becomes a source and restarts empty.
  void Push();
  // Running sum += y [rows, D].
  void Add(const Pass& pass, const float* y);
  const float* partial() const { return partial_; }

 private:
  static constexpr int kMaxSources = 256;
  std::array<const float*, kMaxSources> sources_;
  int count_ = 0;
  float* memory_;
  float* partial_;
  bool empty_ = false;
  int64_t stride_;  // rows * D
};

}  // namespace kestrel
