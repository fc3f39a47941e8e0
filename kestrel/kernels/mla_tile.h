// What MlaDecode and MlaPrefill share, private to them: a worker's scratch, the tile of latents, and the step that
// takes a panel of lanes (heads or rows) over one tile of 64 keys.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "kestrel/base/check.h"
#include "kestrel/kernels/mla_attention.h"
#include "kestrel/kernels/simd/mla_ops.h"

namespace kestrel::mla {

inline constexpr int64_t kTile = kMlaPageTokens;
inline constexpr int64_t kMaxLanes = kMlaLanes * kMlaMaxGroups;  // 48
inline constexpr double kForkFlops = 4e6;                        // 20 us at 200 GFLOP/s

inline int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

struct Kernel {
  const MlaOps& ops;
  MlaSoftmaxTile softmax;
  float scale;
};

// Pairs need every boundary between channels to be even.
inline Kernel PickKernel(const Context& ctx, const MlaShape& shape) {
  const bool even = (shape.rank | shape.rope | shape.nope) % 2 == 0;
  return {GetMlaOps(ctx.isa, even && ctx.matmul == MatMulMode::kBf16), GetMlaSoftmaxTile(ctx.isa), shape.scale};
}

// Hands out 64-byte aligned arrays from a worker's block; with a null base it only counts.
class Scratch {
 public:
  explicit Scratch(std::byte* base) : base_(base) {}
  template <class T>
  T* Take(int64_t count) {
    T* at = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += static_cast<size_t>(RoundUp(count * static_cast<int64_t>(sizeof(T)), 64));
    return at;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

// The latents of one tile as rows of units, [64, units]: the page itself where its type is that of the products.
struct LatentTile {
  const void* page;
  bool bf16_latent;
  int64_t width;  // rank + rope

  int64_t bytes() const { return kTile * width * (bf16_latent ? 2 : 4); }
  const uint32_t* Units(const MlaOps& ops, int64_t keys, uint32_t* scratch /*[64, width / inner]*/) const {
    if (bf16_latent == (ops.inner == 2)) return static_cast<const uint32_t*>(page);
    if (bf16_latent) {
      ops.units_bf16(static_cast<const uint16_t*>(page), keys * width, scratch);
    } else {
      ops.units_f32(static_cast<const float*>(page), keys * width, scratch);
    }
    return scratch;
  }
  // [64 / inner, stride] units of the first n channels, keys from `keys` on as zero.
  void Across(const MlaOps& ops, int64_t keys, int64_t n, uint32_t* dst, int64_t stride) const {
    if (bf16_latent) {
      ops.across_bf16(static_cast<const uint16_t*>(page), width, keys, n, dst, stride);
    } else {
      ops.across_f32(static_cast<const float*>(page), width, keys, n, dst, stride);
    }
  }
};

inline LatentTile TileOf(const MlaCache& cache, const MlaShape& shape, int64_t tile) {
  return {cache.pages[tile], cache.bf16_latent, shape.rank + shape.rope};
}

// State of the online softmax of one panel of lanes, and its weighted values so far.
struct Panel {
  int64_t groups;   // of 16 lanes
  uint32_t* query;  // [units, lanes]
  float* values;    // [channels up to a multiple of 8, lanes]
  float* largest;   // [lanes]
  float* sum;       // [lanes]
};

inline void StartPanel(const Panel& panel) {
  std::fill_n(panel.largest, panel.groups * kMlaLanes, -std::numeric_limits<float>::infinity());
  std::fill_n(panel.sum, panel.groups * kMlaLanes, 0.0f);
}

struct TileOperands {
  const uint32_t* key;  // row m, unit u at m * key_row + u
  int64_t key_row;
  int64_t key_units;
  const uint32_t* value;  // unit u of channel c at u * value_row + c
  int64_t value_row;
  int64_t channels;  // a multiple of 8
};

// Scores, one step of the online softmax, weighted values. `first` tile: there is nothing to rescale yet.
inline void AttendTile(const Kernel& kernel, const TileOperands& tile, const Panel& panel, const int32_t* visible,
                       bool first, float* scores /*[64, 48]*/, uint32_t* weights /*[64 / inner, 48]*/,
                       const MlaPrefetch& ahead = {}) {
  alignas(64) float factor[kMaxLanes];
  const MlaOps& ops = kernel.ops;
  const int64_t lanes = panel.groups * kMlaLanes;
  ops.panel(tile.key, tile.key_row, 1, panel.query, kTile, tile.key_units, panel.groups, nullptr, scores, {});
  kernel.softmax(scores, panel.groups, kernel.scale, visible, panel.largest, panel.sum, factor);
  const uint32_t* p = reinterpret_cast<const uint32_t*>(scores);
  if (ops.inner == 2) {
    ops.across_f32(scores, lanes, kTile, lanes, weights, lanes);
    p = weights;
  }
  ops.panel(tile.value, 1, tile.value_row, p, tile.channels, kTile / ops.inner, panel.groups, first ? nullptr : factor,
            panel.values, ahead);
}

inline void FinishPanel(const MlaOps& ops, const Panel& panel, int64_t count, int64_t channels, float* out,
                        int64_t stride) {
  ops.finish(panel.values, panel.sum, panel.groups, count, channels, out, stride);
}

inline void CheckSegments(const MlaShape& shape, std::span<const MlaSegment> segments) {
  KESTREL_CHECK(shape.heads > 0 && shape.rank > 0 && shape.rope >= 0);
  for (const MlaSegment& segment : segments) {
    KESTREL_CHECK(segment.rows >= 0 && segment.position >= 0 && (segment.rows == 0 || segment.cache.pages != nullptr));
  }
}

template <class F>
void RunTasks(Context& ctx, int64_t tasks, double flops, F&& f) {
  if (flops < kForkFlops) {
    for (int64_t task = 0; task < tasks; ++task) f(task, 0);
  } else {
    ctx.pool.Run(tasks, f);
  }
}

}  // namespace kestrel::mla
