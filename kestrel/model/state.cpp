#include "kestrel/model/state.h"

#include <algorithm>
#include <cstring>

#include "kestrel/formats/state_file.h"
#include "kestrel/kernels/kda/kda.h"
#include "kestrel/kernels/mla_attention.h"
#include "kestrel/model/shapes.h"

namespace kestrel {

StateLayout::StateLayout(const ModelConfig& config, MatMulMode mode, uint64_t model_fingerprint)
    : bf16_latent(MlaMode(config, mode) == MatMulMode::kBf16),
      max_positions(config.max_position_embeddings),
      fingerprint(model_fingerprint * 2 + (mode == MatMulMode::kBf16 ? 1 : 0)) {
  const auto align = [](size_t n) { return (n + 63) & ~size_t{63}; };
  const size_t tail =
      align(static_cast<size_t>(config.kda.conv_width - 1) * config.kda.heads * config.kda.head_dim * 4);
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    Layer layer;
    layer.kda = config.is_kda[static_cast<size_t>(i)];
    if (layer.kda) {
      layer.kda_offset = fixed_bytes;
      fixed_bytes += align(KdaStateBytes(KdaShapeOf(config)));
      for (size_t& offset : layer.tail_offset) {
        offset = fixed_bytes;
        fixed_bytes += tail;
      }
    } else {
      layer.mla_index = mla_layers++;
    }
    layers.push_back(layer);
  }
  page_bytes =
      static_cast<size_t>(kMlaPageTokens) * (config.kv_lora_rank + config.qk_rope_head_dim) * (bf16_latent ? 2 : 4);
}

AlignedBuffer PagePool::Take() {
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      AlignedBuffer group = std::move(free_.back());
      free_.pop_back();
      return group;
    }
  }
  return AlignedBuffer(group_bytes_);
}

void PagePool::Return(AlignedBuffer group) {
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(group));
}

size_t PagePool::free_groups() const {
  std::lock_guard lock(mutex_);
  return free_.size();
}

SequenceState::SequenceState(std::shared_ptr<const StateLayout> layout, std::shared_ptr<PagePool> pool)
    : layout_(std::move(layout)),
      pool_(std::move(pool)),
      fixed_(layout_->fixed_bytes),
      pages_(static_cast<size_t>(layout_->mla_layers)) {}

SequenceState::~SequenceState() {
  for (AlignedBuffer& group : groups_) pool_->Return(std::move(group));
}

size_t SequenceState::bytes() const { return layout_->fixed_bytes + groups_.size() * layout_->group_bytes(); }

Status SequenceState::Reserve(int64_t positions) {
  if (positions > layout_->max_positions) {
    return Err(ErrorCode::kOutOfRange,
               "[model.state] context: got {} positions, want at most {} (max_position_embeddings)", positions,
               layout_->max_positions);
  }
  const auto pages = static_cast<size_t>((positions + kMlaPageTokens - 1) / kMlaPageTokens);
  if (layout_->mla_layers == 0 || groups_.size() >= pages) return {};
  groups_.reserve(pages);
  for (auto& list : pages_) list.reserve(pages);
  while (groups_.size() < pages) {
    groups_.push_back(pool_->Take());
    for (size_t m = 0; m < pages_.size(); ++m) pages_[m].push_back(groups_.back().data() + m * layout_->page_bytes);
  }
  return {};
}

SequenceState SequenceState::Clone() const {
  SequenceState copy(layout_, pool_);
  std::memcpy(copy.fixed_.data(), fixed_.data(), fixed_.size());
  copy.position_ = position_;
  // Room for as much as this one; only pages with positions in them are copied.
  (void)copy.Reserve(static_cast<int64_t>(groups_.size()) * kMlaPageTokens);
  const auto used = static_cast<size_t>((position_ + kMlaPageTokens - 1) / kMlaPageTokens);
  for (size_t g = 0; g < std::min(used, groups_.size()); ++g) {
    std::memcpy(copy.groups_[g].data(), groups_[g].data(), groups_[g].size());
  }
  return copy;
}

void SequenceState::Reset() {
  std::memset(fixed_.data(), 0, fixed_.size());
  position_ = 0;
}

void* SequenceState::latent_row(int layer, int64_t position) {
  const auto m = static_cast<size_t>(layout_->layers[static_cast<size_t>(layer)].mla_index);
  std::byte* page = groups_[static_cast<size_t>(position / kMlaPageTokens)].data() + m * layout_->page_bytes;
  return page + static_cast<size_t>(position % kMlaPageTokens) * (layout_->page_bytes / kMlaPageTokens);
}

Status SequenceState::Save(const std::string& path) const {
  const size_t row = layout_->page_bytes / kMlaPageTokens;
  std::vector<StateSection> sections;
  sections.push_back({"position", {reinterpret_cast<const std::byte*>(&position_), sizeof position_}});
  sections.push_back({"kda", {fixed_.data(), fixed_.size()}});
  for (size_t m = 0; m < pages_.size(); ++m) {
    for (int64_t p = 0; p * kMlaPageTokens < position_; ++p) {
      const auto tokens = static_cast<size_t>(std::min<int64_t>(kMlaPageTokens, position_ - p * kMlaPageTokens));
      sections.push_back({fmt::format("latent.{}.{}", m, p),
                          {static_cast<const std::byte*>(pages_[m][static_cast<size_t>(p)]), tokens * row}});
    }
  }
  return WriteStateFile(path, layout_->fingerprint, sections);
}

Result<SequenceState> SequenceState::Load(const std::string& path, std::shared_ptr<const StateLayout> layout,
                                          std::shared_ptr<PagePool> pool) {
  KESTREL_ASSIGN_OR_RETURN(const StateFile file, StateFile::Read(path));
  if (file.fingerprint() != layout->fingerprint) {
    return Err(
        ErrorCode::kMismatch,
        "[model.state] {}: model fingerprint, got {:016x}, want {:016x}; the state was saved by another model or "
        "another --matmul mode",
        path, file.fingerprint(), layout->fingerprint);
  }
  SequenceState state(layout, std::move(pool));
  const size_t row = layout->page_bytes / kMlaPageTokens;
  const auto read = [&](const std::string& name, void* out, size_t bytes) -> Status {
    const auto section = file.Find(name);
    if (!section || section->size() != bytes) {
      return Err(ErrorCode::kCorrupt, "[model.state] {}: section '{}', got {} bytes, want {}", path, name,
                 section ? section->size() : 0, bytes);
    }
    if (bytes > 0) std::memcpy(out, section->data(), bytes);
    return {};
  };
  int64_t position = 0;
  KESTREL_RETURN_IF_ERROR(read("position", &position, sizeof position));
  if (position < 0)
    return Err(ErrorCode::kCorrupt, "[model.state] {}: position, got {}, want 0 or more", path, position);
  KESTREL_RETURN_IF_ERROR(state.Reserve(position));
  KESTREL_RETURN_IF_ERROR(read("kda", state.fixed_.data(), state.fixed_.size()));
  for (size_t m = 0; m < state.pages_.size(); ++m) {
    for (int64_t p = 0; p * kMlaPageTokens < position; ++p) {
      const auto tokens = static_cast<size_t>(std::min<int64_t>(kMlaPageTokens, position - p * kMlaPageTokens));
      KESTREL_RETURN_IF_ERROR(read(fmt::format("latent.{}.{}", m, p),
                                   state.groups_[static_cast<size_t>(p)].data() + m * layout->page_bytes,
                                   tokens * row));
    }
  }
  state.position_ = position;
  return state;
}

}  // namespace kestrel
