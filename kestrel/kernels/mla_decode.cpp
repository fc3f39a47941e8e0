#include <algorithm>

#include "kestrel/kernels/mla_attention.h"
#include "kestrel/kernels/mla_tile.h"
#include "kestrel/kernels/simd/vector_table.h"

namespace kestrel {
namespace mla {
namespace {

// Long contexts are attended in chunks of keys, each with a softmax of its own, that are merged in order at the end:
// one row then feeds many threads. Where the chunks end depends on the row's number of keys alone, never on the
// threads.
constexpr int64_t kMaxChunks = 8;
constexpr int64_t kMinChunkKeys = 2048;

int64_t ChunkKeys(int64_t keys) {
  return std::max(kMinChunkKeys, RoundUp((keys + kMaxChunks - 1) / kMaxChunks, kTile));
}
int64_t Chunks(int64_t keys) { return (keys + ChunkKeys(keys) - 1) / ChunkKeys(keys); }

struct DecodeScratch {
  uint32_t* query;    // [units, 48]
  uint32_t* latents;  // [64, units]
  uint32_t* across;   // [64 / inner, stride]
  float* scores;      // [64, 48]
  uint32_t* weights;  // [64 / inner, 48]
  float* values;      // [channels, 48]

  DecodeScratch(Scratch s, const MlaShape& shape, int64_t inner, size_t* bytes = nullptr) {
    const int64_t units = (shape.rank + shape.rope) / inner, channels = RoundUp(shape.rank, kMlaRowBlock);
    query = s.Take<uint32_t>(units * kMaxLanes);
    latents = s.Take<uint32_t>(units * kTile);
    across = s.Take<uint32_t>(AcrossStride(channels) * kTile / inner);
    scores = s.Take<float>(kTile * kMaxLanes);
    weights = s.Take<uint32_t>(kTile * kMaxLanes);
    values = s.Take<float>(channels * kMaxLanes);
    if (bytes) *bytes = s.used();
  }
  // 16 more than a multiple of 32, so that the 32 rows of a column are not all in two sets of L1.
  static int64_t AcrossStride(int64_t channels) { return RoundUp(channels, 32) + 16; }
};

// Attention of some heads over one chunk: normed by the chunk's own sum, with the two numbers that a merge needs.
struct Partial {
  float* out;      // [count, rank]
  float* largest;  // [48]
  float* sum;      // [48]
};

struct DecodeTask {
  const Kernel& kernel;
  const MlaShape& shape;
  const DecodeScratch s;
  const MlaCache cache;
  const float* q;  // [count, rank + rope]: the heads that are the lanes
  float* out;      // [count, rank]
  int64_t count;
  int64_t keys;  // the row sees

  void RunChunk(int64_t chunk, const Partial& partial) const {
    const MlaOps& ops = kernel.ops;
    const int64_t width = shape.rank + shape.rope, channels = RoundUp(shape.rank, kMlaRowBlock);
    const int64_t begin = chunk * ChunkKeys(keys), end = std::min(keys, begin + ChunkKeys(keys));
    const Panel panel = {RoundUp(count, kMlaLanes) / kMlaLanes, s.query, s.values, partial.largest, partial.sum};
    ops.pack_f32(q, width, count, width / ops.inner, panel.groups, s.query);
    StartPanel(panel);
    const int64_t stride = DecodeScratch::AcrossStride(channels);
    for (int64_t first = begin; first < end; first += kTile) {
      const int64_t seen = std::min(kTile, end - first);
      const LatentTile latents = TileOf(cache, shape, first / kTile);
      latents.Across(ops, seen, shape.rank, s.across, stride);
      const TileOperands tile = {
          latents.Units(ops, seen, s.latents), width / ops.inner, width / ops.inner, s.across, stride, channels};
      alignas(64) int32_t visible[kMaxLanes];
      std::fill_n(visible, kMaxLanes, static_cast<int32_t>(seen));
      // The next page comes from memory while this one is multiplied.
      MlaPrefetch ahead;
      if (first + kTile < end) ahead = {TileOf(cache, shape, first / kTile + 1).page, latents.bytes()};
      AttendTile(kernel, tile, panel, seen < kTile ? visible : nullptr, first == begin, s.scores, s.weights, ahead);
    }
    FinishPanel(ops, panel, count, shape.rank, partial.out, shape.rank);
  }
};

// Where chunk c's Partial is: base + c * stride of each.
struct Partials {
  Partial base;
  int64_t out_stride;
  int64_t stat_stride;
  Partial At(int64_t chunk) const {
    return {base.out + chunk * out_stride, base.largest + chunk * stat_stride, base.sum + chunk * stat_stride};
  }
};

// out = sum over chunks of sum_c exp(largest_c - largest) out_c, over the sum of those weights.
void MergeChunks(const VectorTable& table, const Partials& partials, int64_t chunks, int64_t count, int64_t rank,
                 float* out /*[count, rank]*/) {
  for (int64_t h = 0; h < count; ++h) {
    float weights[kMaxChunks], largest = partials.base.largest[h], total = 0;
    for (int64_t c = 1; c < chunks; ++c) largest = std::max(largest, partials.At(c).largest[h]);
    for (int64_t c = 0; c < chunks; ++c) weights[c] = partials.At(c).largest[h] - largest;
    table.exp(weights, chunks, weights);
    for (int64_t c = 0; c < chunks; ++c) total += weights[c] *= partials.At(c).sum[h];
    const float* sources[kMaxChunks];
    for (int64_t c = 0; c < chunks; ++c) {
      weights[c] /= total;
      sources[c] = partials.At(c).out + h * rank;
    }
    table.weighted_sum(sources, weights, chunks, rank, out + h * rank);
  }
}

// How one call is shared out. Panels of up to three groups of lanes; where rows and panels are too few for the threads,
// the chunks of a row are tasks as well.
struct DecodePlan {
  int64_t rows = 0;
  int64_t units = 0;  // sum of chunks over the rows if split, else rows
  int64_t most_chunks = 1;
  bool split = false;
  int64_t heads = 0;   // of a panel
  int64_t panels = 0;  // of a row
  double flop = 0;

  DecodePlan(const MlaShape& shape, std::span<const MlaSegment> segments, int64_t threads) {
    int64_t chunks = 0;
    for (const MlaSegment& segment : segments) {
      rows += segment.rows;
      for (int64_t i = 0; i < segment.rows; ++i) {
        const int64_t keys = segment.position + i + 1;
        chunks += Chunks(keys);
        most_chunks = std::max(most_chunks, Chunks(keys));
        flop += 4.0 * static_cast<double>(keys * shape.heads * (shape.rank + shape.rope));
      }
    }
    const int64_t all_groups = (shape.heads + kMlaLanes - 1) / kMlaLanes;
    split = most_chunks > 1 && rows * ((all_groups + kMlaMaxGroups - 1) / kMlaMaxGroups) < 4 * threads;
    units = split ? chunks : rows;
    // Time of a panel of 1, 2, 3 groups: narrow ones load more operands for each product.
    constexpr double kCost[] = {0, 1.3, 2.1, 3.0};
    double best = std::numeric_limits<double>::infinity();
    for (int64_t groups = kMlaMaxGroups; groups >= 1; --groups) {
      const int64_t n = (all_groups + groups - 1) / groups;
      const int64_t rounds = (n * units + threads - 1) / threads;
      const double time = static_cast<double>(rounds) * kCost[groups];
      if (time < best) best = time, heads = groups * kMlaLanes, panels = n;
    }
  }
};

// One MlaDecode. An item is a (row, panel of heads): item = row * panels + panel.
class DecodeCall {
 public:
  DecodeCall(Context& ctx, const MlaShape& shape, std::span<const MlaSegment> segments, const float* q, float* out)
      : ctx_(ctx),
        shape_(shape),
        segments_(segments),
        q_(q),
        out_(out),
        kernel_(PickKernel(ctx, shape)),
        table_(GetVectorTable(ctx.isa)),
        plan_(shape, segments, ctx.pool.size()) {
    const int64_t threads = ctx.pool.size();
    DecodeScratch(Scratch(nullptr), shape, kernel_.ops.inner, &scratch_bytes_);
    scratch_ = ctx.arena.Take<std::byte>(static_cast<int64_t>(scratch_bytes_) * threads);
    // Partial results are held for each item if the chunks are tasks, else for each worker.
    const int64_t holders = plan_.split ? items() : threads;
    partial_out_ = ctx.arena.Take<float>(plan_.most_chunks > 1 ? holders * plan_.most_chunks * panel_out() : 0);
    partial_stat_ = ctx.arena.Take<float>(holders * plan_.most_chunks * 2 * kMaxLanes);
  }

  void Run() {
    if (!plan_.split) {
      RunTasks(ctx_, items(), plan_.flop, [&](int64_t item, int worker) { RunItem(item, worker); });
      return;
    }
    RunTasks(ctx_, items() * plan_.most_chunks, plan_.flop, [&](int64_t i, int worker) {
      const int64_t item = i / plan_.most_chunks, chunk = i % plan_.most_chunks;
      const DecodeTask task = TaskOf(item, worker);
      if (chunk < Chunks(task.keys)) task.RunChunk(chunk, PartialsOf(item).At(chunk));
    });
    RunTasks(ctx_, items(), plan_.flop, [&](int64_t item, int worker) {
      const DecodeTask task = TaskOf(item, worker);
      MergeChunks(table_, PartialsOf(item), Chunks(task.keys), task.count, shape_.rank, task.out);
    });
  }

 private:
  int64_t items() const { return plan_.rows * plan_.panels; }
  int64_t panel_out() const { return plan_.heads * shape_.rank; }

  DecodeTask TaskOf(int64_t item, int worker) const {
    int64_t row = item / plan_.panels;
    size_t at = 0;
    while (row >= segments_[at].rows) row -= segments_[at++].rows;
    const MlaSegment& segment = segments_[at];
    const int64_t head = item % plan_.panels * plan_.heads, index = (segment.first_row + row) * shape_.heads + head;
    std::byte* base = scratch_ + scratch_bytes_ * static_cast<size_t>(worker);
    return {.kernel = kernel_,
            .shape = shape_,
            .s = DecodeScratch(Scratch(base), shape_, kernel_.ops.inner),
            .cache = segment.cache,
            .q = q_ + index * (shape_.rank + shape_.rope),
            .out = out_ + index * shape_.rank,
            .count = std::min(plan_.heads, shape_.heads - head),
            .keys = segment.position + row + 1};
  }

  Partials PartialsOf(int64_t holder) const {
    float* stat = partial_stat_ + holder * plan_.most_chunks * 2 * kMaxLanes;
    float* out = partial_out_ + holder * plan_.most_chunks * panel_out();
    return {{out, stat, stat + kMaxLanes}, panel_out(), 2 * kMaxLanes};
  }

  // All chunks of an item, one after the other.
  void RunItem(int64_t item, int worker) const {
    const DecodeTask task = TaskOf(item, worker);
    const Partials partials = PartialsOf(worker);
    const int64_t chunks = Chunks(task.keys);
    if (chunks == 1) return task.RunChunk(0, {task.out, partials.base.largest, partials.base.sum});
    for (int64_t c = 0; c < chunks; ++c) task.RunChunk(c, partials.At(c));
    MergeChunks(table_, partials, chunks, task.count, shape_.rank, task.out);
  }

  Context& ctx_;
  const MlaShape& shape_;
  std::span<const MlaSegment> segments_;
  const float* q_;  // [rows, heads, rank + rope]
  float* out_;      // [rows, heads, rank]
  Kernel kernel_;
  const VectorTable& table_;
  DecodePlan plan_;
  size_t scratch_bytes_ = 0;
  std::byte* scratch_ = nullptr;
  float* partial_out_ = nullptr;   // [holders, chunks, heads of a panel, rank]
  float* partial_stat_ = nullptr;  // [holders, chunks, 2, 48]: largest, sum
};

}  // namespace
}  // namespace mla

void MlaDecode(Context& ctx, const MlaShape& shape, std::span<const MlaSegment> segments, const float* q_latent,
               float* out) {
  mla::CheckSegments(shape, segments);
  const ArenaScope scope(ctx.arena);
  mla::DecodeCall(ctx, shape, segments, q_latent, out).Run();
}

}  // namespace kestrel
