#include "kestrel/kernels/matmul/matmul.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kestrel/base/check.h"
#include "kestrel/kernels/matmul/tile.h"

namespace kestrel {
namespace matmul {

const TileTable& TilesFor(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return Avx2Tiles();
    case Isa::kAvx512:
      return Avx512Tiles();
    case Isa::kAvx512Bf16:
      return Avx512Bf16Tiles();
#endif
    default:
      return PortableTiles();
  }
}

namespace {

constexpr int64_t kChunkRows = 240;  // of an item: 20 tiles; a pass over the weights then costs 0.25 B a cycle
constexpr int64_t kWavePanelBytes = 64 << 20;                            // of activations repacked at a time
constexpr int64_t kMxfp4Chunk = 512, kBf16Chunk = 256, kF32Chunk = 128;  // k: 8 to 16 KiB of weights
constexpr int64_t kTaskBytes = 128 << 10;                                // of weights, few rows: 7 us at 17 GB/s a core
constexpr int64_t kTaskMacs = 4 << 20;                                   // many rows: 40 us at 100 GMAC/s

// A range of up to kChunkRows rows of one job.
struct Item {
  const MatMulJob* job;
  int64_t row_begin, rows;
  int64_t tiles;
  const TileFn* functions;  // [rows of the tile - 1]
  XKind x_kind;
  std::byte* panel;  // null: rows are read where they stand
  int64_t first_panel_task;
  int64_t block_bytes, cols, blocks, task_blocks;
  int64_t first_task;  // in its wave

  int64_t TileBegin(int64_t tile) const { return tile * rows / tiles; }
};

bool UsesRounded(const Context& ctx, const MatMulJob& job) {
  return ctx.matmul == MatMulMode::kBf16 && job.w->type != WeightType::kF32 && job.x->cols > kExactCols;
}

int64_t PanelElementBytes(XKind kind) { return kind == XKind::kPanelBf16 ? 2 : 4; }

Item MakeItem(const Context& ctx, const TileTable& table, const MatMulJob& job, int64_t row_begin, int64_t rows) {
  const bool rounded = UsesRounded(ctx, job);
  KESTREL_CHECK(job.x->cols == job.w->cols && (!rounded || job.x->rounded != nullptr));
  Item item{};
  item.job = &job;
  item.row_begin = row_begin;
  item.rows = rows;
  item.tiles = (rows + table.max_rows - 1) / table.max_rows;
  if (job.rows <= kDirectRows) {
    item.x_kind = rounded ? XKind::kRowsBf16 : XKind::kRowsF32;
  } else {
    item.x_kind = rounded && table.bf16_panels ? XKind::kPanelBf16 : XKind::kPanelF32;
  }
  item.functions = table.tile[static_cast<int>(job.w->type)][static_cast<int>(item.x_kind)];
  item.cols = PackedCols(job.w->type, job.w->cols);
  item.block_bytes = static_cast<int64_t>(PackedBlockBytes(job.w->type, job.w->cols));
  item.blocks = PackBlocks(job.w->rows);
  return item;
}

bool IsDirect(const Item& item) { return item.x_kind == XKind::kRowsF32 || item.x_kind == XKind::kRowsBf16; }

bool SamePanel(const Item& a, const Item& b) {
  return a.panel != nullptr && a.x_kind == b.x_kind && a.job->x == b.job->x && a.job->x_rows == b.job->x_rows &&
         a.row_begin == b.row_begin && a.rows == b.rows && a.cols == b.cols;
}

int64_t XRow(const MatMulJob& job, int64_t row) { return job.x_rows ? job.x_rows[row] : row; }
int64_t YRow(const MatMulJob& job, int64_t row) { return job.y_rows ? job.y_rows[row] : row; }

template <class From, class To, class Convert>
void Interleave(const From* source, int64_t count, To* out, int64_t stride, Convert convert) {
  for (int64_t i = 0; i < count; ++i) out[i * stride] = convert(source[i]);
}

// Rows of one tile -> [K][rows] (or [K/2][rows] pairs): broadcasts then read one stream, whatever the rows' stride.
void PackTile(const Context& ctx, const Item& item, int64_t tile) {
  const MatMulJob& job = *item.job;
  const Activations& x = *job.x;
  const int64_t begin = item.TileBegin(tile);
  const int64_t rows = item.TileBegin(tile + 1) - begin;
  std::byte* out = item.panel + begin * item.cols * PanelElementBytes(item.x_kind);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t offset = XRow(job, item.row_begin + begin + r) * x.stride;
    if (item.x_kind == XKind::kPanelBf16) {
      Interleave(reinterpret_cast<const uint32_t*>(x.rounded + offset), item.cols / 2,
                 reinterpret_cast<uint32_t*>(out) + r, rows, [](uint32_t pair) { return pair; });
    } else if (UsesRounded(ctx, job)) {
      Interleave(x.rounded + offset, item.cols, reinterpret_cast<float*>(out) + r, rows, ToFloat);
    } else {
      Interleave(x.f32 + offset, item.cols, reinterpret_cast<float*>(out) + r, rows, [](float v) { return v; });
    }
  }
}

TileArgs MakeArgs(const Item& item, int64_t block, int64_t tile) {
  const MatMulJob& job = *item.job;
  const int64_t begin = item.TileBegin(tile);
  const int64_t rows = item.TileBegin(tile + 1) - begin;
  const int64_t first_output = block * kPackBlock;
  TileArgs args;
  args.block = job.w->data + block * item.block_bytes;
  args.cols = item.cols;
  args.k_end = item.cols;
  args.outputs = std::min(kPackBlock, job.w->rows - first_output);
  if (item.panel) args.panel = item.panel + begin * item.cols * PanelElementBytes(item.x_kind);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = item.row_begin + begin + r;
    args.y[r] = job.y + YRow(job, row) * job.y_stride + first_output;
    if (item.x_kind == XKind::kRowsF32) args.x[r] = job.x->f32 + XRow(job, row) * job.x->stride;
    if (item.x_kind == XKind::kRowsBf16) args.x[r] = job.x->rounded + XRow(job, row) * job.x->stride;
  }
  return args;
}

TileFn TileOf(const Item& item, int64_t tile) {
  return item.functions[item.TileBegin(tile + 1) - item.TileBegin(tile) - 1];
}

// k of a weight chunk that stays in L1 (32 KiB) beside a panel of 12 rows.
int64_t ChunkCols(const Item& item) {
  const WeightType type = item.job->w->type;
  return type == WeightType::kMxfp4 ? kMxfp4Chunk : type == WeightType::kBf16 ? kBf16Chunk : kF32Chunk;
}

void PrefetchToL2(const std::byte* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

// Many tiles: chunks of k outside, tiles inside, partial sums in sums [rows][32] (in y they would evict each other:
// rows of y are often a power of two apart). Meanwhile the next chunk is fetched, a slice a tile.
void RunBlockInChunks(const Item& item, int64_t block, float* sums) {
  const int64_t chunk = ChunkCols(item);
  const int64_t chunk_bytes = item.block_bytes * chunk / item.cols;
  const int64_t slice = (chunk_bytes / item.tiles + 63) / 64 * 64;
  for (int64_t k = 0; k < item.cols; k += chunk) {
    for (int64_t tile = 0; tile < item.tiles; ++tile) {
      TileArgs args = MakeArgs(item, block, tile);
      PrefetchToL2(args.block + item.block_bytes * (k + chunk) / item.cols + tile * slice, slice);
      float* partial = sums + item.TileBegin(tile) * kPackBlock;
      args.k_begin = k;
      args.k_end = std::min(item.cols, k + chunk);
      if (k > 0) args.start = partial;
      if (args.k_end < item.cols) {
        args.outputs = kPackBlock;
        for (int64_t r = 0; r < item.TileBegin(tile + 1) - item.TileBegin(tile); ++r) {
          args.y[r] = partial + r * kPackBlock;
        }
      }
      TileOf(item, tile)(args);
    }
  }
}

void RunBlock(const Item& item, int64_t block, float* sums) {
  if (!IsDirect(item) && item.cols > 0) return RunBlockInChunks(item, block, sums);
  for (int64_t tile = 0; tile < item.tiles; ++tile) TileOf(item, tile)(MakeArgs(item, block, tile));
}

// Blocks of a task: small enough to share out, large enough to pay for handing it out. Weights bound few rows,
// multiplications many.
struct TaskSize {
  int64_t bytes, macs;
};

int64_t BlockMacs(const Item& item) { return std::max<int64_t>(item.rows * kPackBlock * item.cols, 1); }

TaskSize TaskSizeFor(std::span<const Item> items, int threads) {
  int64_t bytes = 0, macs = 0;
  for (const Item& item : items) {
    if (IsDirect(item)) bytes += item.blocks * item.block_bytes;
    if (!IsDirect(item)) macs += item.blocks * BlockMacs(item);
  }
  const int64_t tasks = 8 * threads;  // or fewer, larger than 1 us each
  return {std::clamp<int64_t>(bytes / tasks, 16 << 10, kTaskBytes),
          std::clamp<int64_t>(macs / tasks, 128 << 10, kTaskMacs)};
}

int64_t TaskBlocks(const Item& item, TaskSize size) {
  const int64_t blocks =
      IsDirect(item) ? size.bytes / std::max<int64_t>(item.block_bytes, 1) : size.macs / BlockMacs(item);
  return std::max<int64_t>(blocks, 1);
}

const Item& FindItem(std::span<const Item> items, int64_t task, int64_t Item::*first) {
  const auto after =
      std::partition_point(items.begin(), items.end(), [&](const Item& item) { return item.*first <= task; });
  return *(after - 1);
}

// Gives panels to the items of a wave and packs them; returns how many items fit.
int64_t PreparePanels(Context& ctx, std::span<Item> items) {
  int64_t bytes = 0, tasks = 0, count = 0;
  for (Item& item : items) {
    item.first_panel_task = tasks;
    if (!IsDirect(item)) {
      const int64_t need = item.rows * item.cols * PanelElementBytes(item.x_kind);
      for (int64_t back = 1; back <= std::min<int64_t>(count, 8) && !item.panel; ++back) {
        if (SamePanel(items[count - back], item)) item.panel = items[count - back].panel;
      }
      if (!item.panel) {
        if (bytes > 0 && bytes + need > kWavePanelBytes) break;
        bytes += need;
        item.panel = ctx.arena.Take<std::byte>(need);
        tasks += item.tiles;
      }
    }
    ++count;
  }
  const std::span<const Item> wave = items.first(count);
  ctx.pool.Run(tasks, [&](int64_t task, int) {
    const Item& item = FindItem(wave, task, &Item::first_panel_task);
    PackTile(ctx, item, task - item.first_panel_task);
  });
  return count;
}

void RunWave(Context& ctx, std::span<Item> items) {
  const TaskSize size = TaskSizeFor(items, ctx.pool.size());
  int64_t tasks = 0;
  for (Item& item : items) {
    item.task_blocks = TaskBlocks(item, size);
    item.first_task = tasks;
    tasks += (item.blocks + item.task_blocks - 1) / item.task_blocks;
  }
  const std::span<const Item> wave = items;
  auto* sums = ctx.arena.Take<float>(ctx.pool.size() * kChunkRows * kPackBlock);
  ctx.pool.Run(tasks, [&](int64_t task, int worker) {
    const Item& item = FindItem(wave, task, &Item::first_task);
    const int64_t begin = (task - item.first_task) * item.task_blocks;
    const int64_t end = std::min(item.blocks, begin + item.task_blocks);
    for (int64_t block = begin; block < end; ++block) RunBlock(item, block, sums + worker * kChunkRows * kPackBlock);
  });
}

}  // namespace
}  // namespace matmul

namespace {
// ToBf16 without a branch, which the compiler turns into vectors.
bf16 Round(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  const uint32_t nan = (u >> 16) | 0x40u;
  const uint32_t number = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : number)};
}
}  // namespace

Activations PrepareActivations(Context& ctx, const float* x, int64_t rows, int64_t cols, int64_t x_stride) {
  Activations result;
  result.rows = rows;
  result.cols = cols;
  result.stride = (cols + 31) / 32 * 32;
  auto* f32 = ctx.arena.Take<float>(rows * result.stride);
  auto* rounded = ctx.matmul == MatMulMode::kBf16 && cols > kExactCols ? ctx.arena.Take<bf16>(rows * result.stride) : nullptr;
  const int64_t pad = result.stride - cols;
  const auto prepare_row = [&](int64_t row, int) {
    float* to = f32 + row * result.stride;
    std::memcpy(to, x + row * x_stride, static_cast<size_t>(cols) * sizeof(float));
    std::memset(to + cols, 0, static_cast<size_t>(pad) * sizeof(float));
    if (rounded) {
      bf16* half = rounded + row * result.stride;
      for (int64_t i = 0; i < result.stride; ++i) half[i] = Round(to[i]);
    }
  };
  if (rows * cols < 64 << 10) {  // 64 Ki elements take about as long as a fork and join are worth
    for (int64_t row = 0; row < rows; ++row) prepare_row(row, 0);
  } else {
    ctx.pool.Run(rows, prepare_row);
  }
  result.f32 = f32;
  result.rounded = rounded;
  return result;
}

void MatMul(Context& ctx, std::span<const MatMulJob> jobs) {
  const ArenaScope scope(ctx.arena);
  const matmul::TileTable& table = matmul::TilesFor(ctx.isa);
  const auto chunk_rows = [](const MatMulJob& job) {
    const int64_t chunks = (job.rows + matmul::kChunkRows - 1) / matmul::kChunkRows;
    return chunks > 0 ? (job.rows + chunks - 1) / chunks : 1;
  };
  int64_t count = 0;
  for (const MatMulJob& job : jobs) count += (job.rows + chunk_rows(job) - 1) / chunk_rows(job);
  auto* items = ctx.arena.Take<matmul::Item>(count);
  int64_t next = 0;
  for (const MatMulJob& job : jobs) {
    const int64_t chunk = chunk_rows(job);
    for (int64_t row = 0; row < job.rows; row += chunk) {
      items[next++] = matmul::MakeItem(ctx, table, job, row, std::min(chunk, job.rows - row));
    }
  }
  for (int64_t done = 0; done < count;) {
    const ArenaScope wave_scope(ctx.arena);
    const std::span<matmul::Item> rest(items + done, static_cast<size_t>(count - done));
    const int64_t fit = matmul::PreparePanels(ctx, rest);
    matmul::RunWave(ctx, rest.first(static_cast<size_t>(fit)));
    done += fit;
  }
}

void MatMul(Context& ctx, const Activations& x, const PackedMatrix& w, float* y, int64_t y_stride) {
  const MatMulJob job{&x, &w, y, y_stride, x.rows};
  MatMul(ctx, std::span(&job, 1));
}

}  // namespace kestrel
