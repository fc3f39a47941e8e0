#include "kestrel/kernels/mla_attention.h"

#include <algorithm>
#include <limits>

#include "kestrel/base/check.h"
#include "kestrel/base/float_types.h"
#include "kestrel/kernels/simd/mla_ops.h"

namespace kestrel {
namespace {

constexpr int64_t kTile = kMlaPageTokens;
constexpr int64_t kMaxLanes = kMlaLanes * kMlaMaxGroups;  // 48
constexpr double kForkFlops = 4e6;                        // 20 us at 200 GFLOP/s

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

struct Kernel {
  const MlaOps& ops;
  MlaSoftmaxTile softmax;
  float scale;
};

// Pairs need every boundary between channels to be even.
Kernel PickKernel(const Context& ctx, const MlaShape& shape) {
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

LatentTile TileOf(const MlaCache& cache, const MlaShape& shape, int64_t tile) {
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

void StartPanel(const Panel& panel) {
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
void AttendTile(const Kernel& kernel, const TileOperands& tile, const Panel& panel, const int32_t* visible, bool first,
                float* scores /*[64, 48]*/, uint32_t* weights /*[64 / inner, 48]*/) {
  alignas(64) float factor[kMaxLanes];
  const MlaOps& ops = kernel.ops;
  const int64_t lanes = panel.groups * kMlaLanes;
  ops.panel(tile.key, tile.key_row, 1, panel.query, kTile, tile.key_units, panel.groups, nullptr, scores);
  kernel.softmax(scores, panel.groups, kernel.scale, visible, panel.largest, panel.sum, factor);
  const uint32_t* p = reinterpret_cast<const uint32_t*>(scores);
  if (ops.inner == 2) {
    ops.across_f32(scores, lanes, kTile, lanes, weights, lanes);
    p = weights;
  }
  ops.panel(tile.value, 1, tile.value_row, p, tile.channels, kTile / ops.inner, panel.groups, first ? nullptr : factor,
            panel.values);
}

void FinishPanel(const MlaOps& ops, const Panel& panel, int64_t count, int64_t channels, float* out, int64_t stride) {
  ops.finish(panel.values, panel.sum, panel.groups, count, channels, out, stride);
}

// ---- decode ------------------------------------------------------------------------------------------------------

struct DecodeScratch {
  uint32_t* query;
  uint32_t* latents;
  uint32_t* across;
  float* scores;
  uint32_t* weights;
  float* values;
  float* largest;
  float* sum;

  DecodeScratch(Scratch s, const MlaShape& shape, int64_t inner, size_t* bytes = nullptr) {
    const int64_t units = (shape.rank + shape.rope) / inner, channels = RoundUp(shape.rank, kMlaRowBlock);
    query = s.Take<uint32_t>(units * kMaxLanes);
    latents = s.Take<uint32_t>(units * kTile);
    across = s.Take<uint32_t>(AcrossStride(channels) * kTile / inner);
    scores = s.Take<float>(kTile * kMaxLanes);
    weights = s.Take<uint32_t>(kTile * kMaxLanes);
    values = s.Take<float>(channels * kMaxLanes);
    largest = s.Take<float>(kMaxLanes);
    sum = s.Take<float>(kMaxLanes);
    if (bytes) *bytes = s.used();
  }
  // 16 more than a multiple of 16, so that the 32 rows of a column are not all in two sets of L1.
  static int64_t AcrossStride(int64_t channels) { return RoundUp(channels, 32) + 16; }
};

// One row, heads first_head .. first_head + count - 1, which are the lanes.
void DecodeHeads(const Kernel& kernel, const MlaShape& shape, const MlaCache& cache, int64_t keys, int64_t count,
                 const float* q /*[count, rank + rope]*/, const DecodeScratch& s, float* out /*[count, rank]*/) {
  const MlaOps& ops = kernel.ops;
  const int64_t width = shape.rank + shape.rope, channels = RoundUp(shape.rank, kMlaRowBlock);
  const Panel panel = {RoundUp(count, kMlaLanes) / kMlaLanes, s.query, s.values, s.largest, s.sum};
  ops.pack_f32(q, width, count, width / ops.inner, panel.groups, s.query);
  StartPanel(panel);
  const int64_t stride = DecodeScratch::AcrossStride(channels);
  for (int64_t first = 0; first < keys; first += kTile) {
    const int64_t seen = std::min(kTile, keys - first);
    const LatentTile latents = TileOf(cache, shape, first / kTile);
    latents.Across(ops, seen, shape.rank, s.across, stride);
    const TileOperands tile = {
        latents.Units(ops, seen, s.latents), width / ops.inner, width / ops.inner, s.across, stride, channels};
    alignas(64) int32_t visible[kMaxLanes];
    std::fill_n(visible, kMaxLanes, static_cast<int32_t>(seen));
    AttendTile(kernel, tile, panel, seen < kTile ? visible : nullptr, first == 0, s.scores, s.weights);
  }
  FinishPanel(ops, panel, count, shape.rank, out, shape.rank);
}

// ---- prefill -----------------------------------------------------------------------------------------------------

struct PrefillScratch {
  uint32_t* key_weight;    // panels of [rank units, lanes] over the nope channels
  uint32_t* value_weight;  // the same over the v_dim channels
  uint32_t* latents;       // [64, units]
  float* expanded;         // [64, 48]
  uint32_t* key;           // [64, (nope + rope) / inner]
  uint32_t* value;         // [64 / inner, value_stride]
  float* scores;
  uint32_t* weights;
  uint32_t* query;  // panels of [key units, lanes]
  float* values;    // panels of [channels, lanes]
  float* largest;
  float* sum;

  PrefillScratch(Scratch s, const MlaShape& shape, int64_t inner, int64_t rows, size_t* bytes = nullptr) {
    const int64_t lanes = RoundUp(rows, kMlaLanes), rank_units = shape.rank / inner;
    key_weight = s.Take<uint32_t>(rank_units * RoundUp(shape.nope, kMlaLanes));
    value_weight = s.Take<uint32_t>(rank_units * RoundUp(shape.v_dim, kMlaLanes));
    latents = s.Take<uint32_t>(kTile * (shape.rank + shape.rope) / inner);
    expanded = s.Take<float>(kTile * kMaxLanes);
    key = s.Take<uint32_t>(kTile * (shape.nope + shape.rope) / inner);
    value = s.Take<uint32_t>(kTile / inner * ValueStride(shape));
    scores = s.Take<float>(kTile * kMaxLanes);
    weights = s.Take<uint32_t>(kTile * kMaxLanes);
    query = s.Take<uint32_t>((shape.nope + shape.rope) / inner * lanes);
    values = s.Take<float>(RoundUp(shape.v_dim, kMlaRowBlock) * lanes);
    largest = s.Take<float>(lanes);
    sum = s.Take<float>(lanes);
    if (bytes) *bytes = s.used();
  }
  static int64_t ValueStride(const MlaShape& shape) { return RoundUp(shape.v_dim, 32) + 16; }
};

struct PrefillHead {
  const Kernel& kernel;
  const MlaShape& shape;
  const MlaSegment& segment;
  const MlaUpProjection& up;
  const PrefillScratch& s;
  int64_t head;

  const MlaOps& ops() const { return kernel.ops; }
  int64_t key_units() const { return (shape.nope + shape.rope) / ops().inner; }
  int64_t channels() const { return RoundUp(shape.v_dim, kMlaRowBlock); }

  // f(first, count, groups) over n in panels of 48.
  template <class F>
  static void ForPanels(int64_t n, F&& f) {
    for (int64_t first = 0; first < n; first += kMaxLanes) {
      const int64_t count = std::min(kMaxLanes, n - first);
      f(first, count, RoundUp(count, kMlaLanes) / kMlaLanes);
    }
  }

  // Rows first_row.. of kv_b, n of them, as panels.
  void PackWeights(int64_t first_row, int64_t n, uint32_t* dst) const {
    const int64_t units = shape.rank / ops().inner;
    ForPanels(n, [&](int64_t first, int64_t count, int64_t groups) {
      const int64_t at = (first_row + first) * shape.rank;
      if (up.is_bf16) {
        ops().pack_bf16(static_cast<const uint16_t*>(up.kv_b) + at, shape.rank, count, units, groups,
                        dst + first * units);
      } else {
        ops().pack_f32(static_cast<const float*>(up.kv_b) + at, shape.rank, count, units, groups, dst + first * units);
      }
    });
  }

  Panel PanelAt(int64_t first, int64_t groups) const {
    return {groups, s.query + first * key_units(), s.values + first * channels(), s.largest + first, s.sum + first};
  }

  void Start(const float* q) const {
    const int64_t width = shape.nope + shape.rope, first_row = head * (shape.nope + shape.v_dim);
    PackWeights(first_row, shape.nope, s.key_weight);
    PackWeights(first_row + shape.nope, shape.v_dim, s.value_weight);
    ForPanels(segment.rows, [&](int64_t first, int64_t count, int64_t groups) {
      const Panel panel = PanelAt(first, groups);
      ops().pack_f32(q + ((segment.first_row + first) * shape.heads + head) * width, shape.heads * width, count,
                     key_units(), groups, panel.query);
      StartPanel(panel);
    });
  }

  // K and V of one tile from its latents.
  void Expand(const LatentTile& latents, int64_t keys) const {
    const int64_t inner = ops().inner, latent_units = latents.width / inner, rank_units = shape.rank / inner;
    const uint32_t* a = latents.Units(ops(), keys, s.latents);
    ForPanels(shape.nope, [&](int64_t first, int64_t count, int64_t groups) {
      ops().panel(a, latent_units, 1, s.key_weight + first * rank_units, kTile, rank_units, groups, nullptr,
                  s.expanded);
      for (int64_t k = 0; k < kTile; ++k) {
        ops().units_f32(s.expanded + k * groups * kMlaLanes, count, s.key + k * key_units() + first / inner);
      }
    });
    for (int64_t k = 0; k < kTile; ++k) {
      std::copy_n(a + k * latent_units + rank_units, shape.rope / inner, s.key + k * key_units() + shape.nope / inner);
    }
    ForPanels(shape.v_dim, [&](int64_t first, int64_t count, int64_t groups) {
      ops().panel(a, latent_units, 1, s.value_weight + first * rank_units, kTile, rank_units, groups, nullptr,
                  s.expanded);
      ops().across_f32(s.expanded, groups * kMlaLanes, keys, count, s.value + first,
                       PrefillScratch::ValueStride(shape));
    });
  }

  // The rows that see anything of the tile whose first key is first_key.
  void Attend(int64_t first_key) const {
    const TileOperands tile = {s.key,     key_units(), key_units(), s.value, PrefillScratch::ValueStride(shape),
                               channels()};
    ForPanels(segment.rows, [&](int64_t first, int64_t count, int64_t groups) {
      const int64_t position = segment.position + first;
      if (position + count <= first_key) return;
      alignas(64) int32_t visible[kMaxLanes];
      for (int64_t lane = 0; lane < groups * kMlaLanes; ++lane) {
        const int64_t seen = position + std::min(lane, count - 1) + 1 - first_key;
        visible[lane] = static_cast<int32_t>(std::clamp<int64_t>(seen, 0, kTile));
      }
      AttendTile(kernel, tile, PanelAt(first, groups), visible[0] < kTile ? visible : nullptr, first_key == 0, s.scores,
                 s.weights);
    });
  }

  void Run(const float* q, float* out) const {
    Start(q);
    const int64_t keys = segment.position + segment.rows;
    for (int64_t first_key = 0; first_key < keys; first_key += kTile) {
      Expand(TileOf(segment.cache, shape, first_key / kTile), std::min(kTile, keys - first_key));
      Attend(first_key);
    }
    ForPanels(segment.rows, [&](int64_t first, int64_t count, int64_t groups) {
      FinishPanel(ops(), PanelAt(first, groups), count, shape.v_dim,
                  out + ((segment.first_row + first) * shape.heads + head) * shape.v_dim, shape.heads * shape.v_dim);
    });
  }
};

void CheckSegments(const MlaShape& shape, std::span<const MlaSegment> segments) {
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

}  // namespace

void MlaDecode(Context& ctx, const MlaShape& shape, std::span<const MlaSegment> segments, const float* q_latent,
               float* out) {
  CheckSegments(shape, segments);
  const Kernel kernel = PickKernel(ctx, shape);
  const int64_t width = shape.rank + shape.rope, all_groups = RoundUp(shape.heads, kMlaLanes) / kMlaLanes;
  int64_t rows = 0;
  double flops = 0;
  for (const MlaSegment& segment : segments) {
    rows += segment.rows;
    flops += 4.0 * static_cast<double>(segment.rows * (segment.position + segment.rows) * shape.heads * width);
  }
  // Panels as wide as leaves every thread one.
  const int64_t threads = ctx.pool.size();
  const int64_t groups = std::clamp<int64_t>(rows * all_groups / threads, 1, kMlaMaxGroups);
  const int64_t heads = groups * kMlaLanes, panels = (shape.heads + heads - 1) / heads;

  size_t bytes = 0;
  DecodeScratch(Scratch(nullptr), shape, kernel.ops.inner, &bytes);
  const ArenaScope scope(ctx.arena);
  std::byte* scratch = ctx.arena.Take<std::byte>(static_cast<int64_t>(bytes) * threads);
  RunTasks(ctx, rows * panels, flops, [&](int64_t task, int worker) {
    int64_t row = task / panels;
    size_t at = 0;
    while (row >= segments[at].rows) row -= segments[at++].rows;
    const MlaSegment& segment = segments[at];
    const int64_t head = task % panels * heads, item = (segment.first_row + row) * shape.heads + head;
    const DecodeScratch mine(Scratch(scratch + bytes * static_cast<size_t>(worker)), shape, kernel.ops.inner);
    DecodeHeads(kernel, shape, segment.cache, segment.position + row + 1, std::min(heads, shape.heads - head),
                q_latent + item * width, mine, out + item * shape.rank);
  });
}

void MlaPrefill(Context& ctx, const MlaShape& shape, std::span<const MlaSegment> segments, const float* q,
                const MlaUpProjection& up, float* out) {
  CheckSegments(shape, segments);
  const Kernel kernel = PickKernel(ctx, shape);
  int64_t most = 0;
  double flops = 0;
  for (const MlaSegment& segment : segments) {
    most = std::max(most, segment.rows);
    flops += static_cast<double>((segment.position + segment.rows) * (shape.rank + segment.rows)) *
             static_cast<double>(shape.nope + shape.v_dim) * shape.heads;
  }
  size_t bytes = 0;
  PrefillScratch(Scratch(nullptr), shape, kernel.ops.inner, most, &bytes);
  const ArenaScope scope(ctx.arena);
  std::byte* scratch = ctx.arena.Take<std::byte>(static_cast<int64_t>(bytes) * ctx.pool.size());
  RunTasks(ctx, static_cast<int64_t>(segments.size()) * shape.heads, flops, [&](int64_t task, int worker) {
    const MlaSegment& segment = segments[static_cast<size_t>(task / shape.heads)];
    const PrefillScratch mine(Scratch(scratch + bytes * static_cast<size_t>(worker)), shape, kernel.ops.inner, most);
    PrefillHead{kernel, shape, segment, up, mine, task % shape.heads}.Run(q, out);
  });
}

}  // namespace kestrel
