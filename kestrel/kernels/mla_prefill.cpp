#include <algorithm>

#include "kestrel/kernels/mla_attention.h"
#include "kestrel/kernels/mla_tile.h"

namespace kestrel {
namespace mla {
namespace {

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
      ops().panel(a, latent_units, 1, s.key_weight + first * rank_units, kTile, rank_units, groups, nullptr, s.expanded,
                  {});
      for (int64_t k = 0; k < kTile; ++k) {
        ops().units_f32(s.expanded + k * groups * kMlaLanes, count, s.key + k * key_units() + first / inner);
      }
    });
    for (int64_t k = 0; k < kTile; ++k) {
      std::copy_n(a + k * latent_units + rank_units, shape.rope / inner, s.key + k * key_units() + shape.nope / inner);
    }
    ForPanels(shape.v_dim, [&](int64_t first, int64_t count, int64_t groups) {
      ops().panel(a, latent_units, 1, s.value_weight + first * rank_units, kTile, rank_units, groups, nullptr,
                  s.expanded, {});
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
      alignas(64) int32_t visible[kMaxLanes] = {};
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

}  // namespace
}  // namespace mla

void MlaPrefill(Context& ctx, const MlaShape& shape, std::span<const MlaSegment> segments, const float* q,
                const MlaUpProjection& up, float* out) {
  using namespace mla;
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
