// What one sequence carries from token to token: for every KDA layer the recurrent state and three convolution tails,
// for every MLA layer the latent [c ; r] of each position, in pages of 64 positions. AttnRes carries nothing.
//
//   SequenceState s(layout, pool);
//   KESTREL_RETURN_IF_ERROR(s.Reserve(prompt + n));   // so that decoding allocates nothing
//   SequenceState branch = s.Clone();
//   KESTREL_RETURN_IF_ERROR(s.Save("prefix.state"));
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kestrel/base/aligned.h"
#include "kestrel/base/result.h"
#include "kestrel/formats/model_config.h"
#include "kestrel/tensor/context.h"

namespace kestrel {

// Sizes and offsets, the same for every sequence of a model in one matmul mode.
struct StateLayout {
  StateLayout(const ModelConfig& config, MatMulMode mode, uint64_t fingerprint);

  // Of layer l: byte offsets into the fixed part (KDA), or index among the MLA layers.
  struct Layer {
    bool kda = false;
    size_t kda_offset = 0, tail_offset[3] = {0, 0, 0};
    int mla_index = 0;
  };
  std::vector<Layer> layers;
  size_t fixed_bytes = 0;  // all KDA states and tails
  size_t page_bytes = 0;   // one page of one MLA layer: 64 * (rank + rope) * element size
  int mla_layers = 0;
  bool bf16_latent = true;  // the latent is only ever a matmul input, so it is stored in the matmul's input type
  int64_t max_positions = 0;
  uint64_t fingerprint = 0;  // of the model and the mode

  size_t group_bytes() const { return page_bytes * static_cast<size_t>(mla_layers); }
};

// Hands out groups of pages (64 positions of all MLA layers) and takes them back. Thread-safe.
class PagePool {
 public:
  explicit PagePool(size_t group_bytes) : group_bytes_(group_bytes) {}
  AlignedBuffer Take();
  void Return(AlignedBuffer group);
  size_t free_groups() const;

 private:
  size_t group_bytes_;
  mutable std::mutex mutex_;
  std::vector<AlignedBuffer> free_;
};

class SequenceState {
 public:
  SequenceState(std::shared_ptr<const StateLayout> layout, std::shared_ptr<PagePool> pool);
  ~SequenceState();
  SequenceState(SequenceState&&) noexcept = default;
  SequenceState& operator=(SequenceState&&) = delete;
  SequenceState(const SequenceState&) = delete;
  SequenceState& operator=(const SequenceState&) = delete;

  int64_t position() const { return position_; }  // tokens seen
  size_t bytes() const;

  // Makes room for `positions` tokens in all. kOutOfRange past the model's maximum.
  Status Reserve(int64_t positions);
  SequenceState Clone() const;
  void Reset();

  // Atomic and checksummed; refused on load where the model, its weights or the matmul mode differ.
  Status Save(const std::string& path) const;
  static Result<SequenceState> Load(const std::string& path, std::shared_ptr<const StateLayout> layout,
                                    std::shared_ptr<PagePool> pool);

  // For the layers.
  std::byte* kda(int layer) { return fixed_.data() + layout_->layers[static_cast<size_t>(layer)].kda_offset; }
  float* conv_tail(int layer, int which) {
    return reinterpret_cast<float*>(fixed_.data() + layout_->layers[static_cast<size_t>(layer)].tail_offset[which]);
  }
  const void* const* pages(int layer) const {
    return pages_[static_cast<size_t>(layout_->layers[static_cast<size_t>(layer)].mla_index)].data();
  }
  void* latent_row(int layer, int64_t position);  // [rank + rope]
  void Advance(int64_t tokens) { position_ += tokens; }
  const StateLayout& layout() const { return *layout_; }

 private:
  std::shared_ptr<const StateLayout> layout_;
  std::shared_ptr<PagePool> pool_;
  AlignedBuffer fixed_;
  std::vector<AlignedBuffer> groups_;            // [pages]
  std::vector<std::vector<const void*>> pages_;  // [mla layer][page]
  int64_t position_ = 0;
};

}  // namespace kestrel
