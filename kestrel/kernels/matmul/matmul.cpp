#include "kestrel/kernels/matmul/matmul.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kestrel/base/check.h"
#include "kestrel/kernels/matmul/int16_rows.h"
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
constexpr int64_t kWavePanelBytes = 16 << 20;  // of activations repacked at a time
constexpr int64_t kChunkCols = 256;            // 16 KiB of weights as 16-bit numbers
constexpr int64_t kTaskBytes = 512 << 10;      // of weights, few rows: 30 us at 17 GB/s a core; what a task prefetches
                                               // past its end is lost, 3 % of 128 KiB on two threads
constexpr int64_t kTaskMacs = 4 << 20;         // many rows: 40 us at 100 GMAC/s

// How a job multiplies; the order of XKind.
enum class Product { kF32, kBf16, kInt16, kExact };

// A range of up to kChunkRows rows of one job.
struct Item {
  const MatMulJob* job;
  Int16Rows int16;  // of job->x, where the product is kInt16
  int64_t row_begin, rows;
  int64_t tiles;
  const TileFn* functions;  // [rows of the tile - 1]
  Product product;
  XKind x_kind;
  std::byte* panel;  // null: rows are read where they stand
  int64_t first_panel_task;
  int64_t block_bytes, cols, blocks, task_blocks;
  int64_t first_task;  // in its wave

  int64_t TileBegin(int64_t tile) const { return tile * rows / tiles; }
};

Product ProductOf(const Context& ctx, const MatMulJob& job) {
  if (ctx.matmul == MatMulMode::kF32 || job.w->type == WeightType::kF32) return Product::kExact;
  if (job.w->type == WeightType::kMxfp4) return Product::kInt16;
  return job.x->cols > kExactCols ? Product::kBf16 : Product::kF32;
}

XKind KindOf(const TileTable& table, Product product, bool direct) {
  if (!direct && product == Product::kBf16 && !table.bf16_panels) return XKind::kPanelF32;
  const auto first = static_cast<int>(direct ? XKind::kRowsF32 : XKind::kPanelF32);
  return static_cast<XKind>(first + static_cast<int>(product));
}

// Bytes of a panel for each of its rows.
int64_t PanelRowBytes(const Item& item) {
  if (item.x_kind == XKind::kPanelInt16) return item.cols / kMxfp4Group * kInt16GroupWords * 4;
  return item.cols * (item.x_kind == XKind::kPanelBf16 ? 2 : 4);
}

Item MakeItem(const Context& ctx, const TileTable& table, const MatMulJob& job, int64_t row_begin, int64_t rows) {
  KESTREL_CHECK(job.x->cols == job.w->cols);
  Item item{};
  item.job = &job;
  item.row_begin = row_begin;
  item.rows = rows;
  item.tiles = (rows + table.max_rows - 1) / table.max_rows;
  item.product = ProductOf(ctx, job);
  KESTREL_CHECK(item.product != Product::kBf16 || job.x->rounded != nullptr);
  item.x_kind = KindOf(table, item.product, job.rows <= kDirectRows);
  item.functions = table.tile[static_cast<int>(job.w->type)][static_cast<int>(item.x_kind)];
  item.cols = PackedCols(job.w->type, job.w->cols);
  item.block_bytes = static_cast<int64_t>(PackedBlockBytes(job.w->type, job.w->cols));
  item.blocks = PackBlocks(job.w->rows);
  return item;
}

bool IsDirect(const Item& item) { return item.x_kind < XKind::kPanelF32; }

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

// Pairs of a row and the scales of their groups, side by side with those of the tile's other rows.
void InterleaveInt16(const int16_t* value, const float* scale, int64_t groups, uint32_t* out, int64_t stride) {
  constexpr int64_t kPairs = kMxfp4Group / 2;
  for (int64_t g = 0; g < groups; ++g, out += kInt16GroupWords * stride) {
    Interleave(reinterpret_cast<const uint32_t*>(value) + g * kPairs, kPairs, out, stride,
               [](uint32_t p) { return p; });
    out[kPairs * stride] = std::bit_cast<uint32_t>(scale[g]);
  }
}

// Rows of one tile -> a panel (see XKind): broadcasts then read one stream, whatever the rows' stride.
void PackTile(const Item& item, int64_t tile) {
  const MatMulJob& job = *item.job;
  const Activations& x = *job.x;
  const int64_t begin = item.TileBegin(tile);
  const int64_t rows = item.TileBegin(tile + 1) - begin;
  std::byte* out = item.panel + begin * PanelRowBytes(item);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t offset = XRow(job, item.row_begin + begin + r) * x.stride;
    if (item.x_kind == XKind::kPanelInt16) {
      InterleaveInt16(item.int16.value + offset, item.int16.scale + offset / kMxfp4Group, item.cols / kMxfp4Group,
                      reinterpret_cast<uint32_t*>(out) + r, rows);
    } else if (item.x_kind == XKind::kPanelBf16) {
      Interleave(reinterpret_cast<const uint32_t*>(x.rounded + offset), item.cols / 2,
                 reinterpret_cast<uint32_t*>(out) + r, rows, [](uint32_t pair) { return pair; });
    } else if (item.product == Product::kBf16) {
      Interleave(x.rounded + offset, item.cols, reinterpret_cast<float*>(out) + r, rows, ToFloat);
    } else {
      Interleave(x.f32 + offset, item.cols, reinterpret_cast<float*>(out) + r, rows, [](float v) { return v; });
    }
  }
}

// Where row `row` of the item's job stands, for the tiles of few rows.
const void* DirectRow(const Item& item, int64_t row) {
  const Activations& x = *item.job->x;
  const int64_t offset = XRow(*item.job, row) * x.stride;
  if (item.x_kind == XKind::kRowsInt16 && item.int16.split) return item.int16.split + offset / kMxfp4Group;
  if (item.x_kind == XKind::kRowsInt16) return item.int16.value + offset;
  if (item.x_kind == XKind::kRowsBf16) return x.rounded + offset;
  return x.f32 + offset;
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
  if (item.panel) args.panel = item.panel + begin * PanelRowBytes(item);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = item.row_begin + begin + r;
    args.y[r] = job.y + YRow(job, row) * job.y_stride + first_output;
    if (IsDirect(item)) args.x[r] = DirectRow(item, row);
    if (item.x_kind == XKind::kRowsInt16) {
      args.x_scale[r] = item.int16.scale + XRow(job, row) * (job.x->stride / kMxfp4Group);
    }
  }
  return args;
}

TileFn TileOf(const Item& item, int64_t tile) {
  return item.functions[item.TileBegin(tile + 1) - item.TileBegin(tile) - 1];
}

// What one worker needs for a block: sums of its rows between chunks of k, a chunk of weights decoded to int16.
struct Scratch {
  alignas(64) float sums[kChunkRows * kPackBlock];
  alignas(64) uint32_t decoded[kChunkCols / 2 * kPackBlock];
};

void PrefetchToL2(const std::byte* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

// Many tiles: chunks of k that stay in L1 outside, tiles inside, partial sums in scratch [rows][32] (in y they would
// evict each other: rows of y are often a power of two apart). Meanwhile the next chunk is fetched, a slice a tile.
void RunBlockInChunks(const Item& item, const TileTable& table, int64_t block, Scratch& scratch) {
  const int64_t chunk = kChunkCols;
  const int64_t chunk_bytes = item.block_bytes * chunk / item.cols;
  const int64_t slice = (chunk_bytes / item.tiles + 63) / 64 * 64;
  for (int64_t k = 0; k < item.cols; k += chunk) {
    if (item.x_kind == XKind::kPanelInt16) {
      table.decode(item.job->w->data + block * item.block_bytes, k, std::min(item.cols, k + chunk), scratch.decoded);
    }
    for (int64_t tile = 0; tile < item.tiles; ++tile) {
      TileArgs args = MakeArgs(item, block, tile);
      PrefetchToL2(args.block + item.block_bytes * (k + chunk) / item.cols + tile * slice, slice);
      float* partial = scratch.sums + item.TileBegin(tile) * kPackBlock;
      args.decoded = scratch.decoded;
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

// Sums in double are not cut: a chunk would round them, and their speed matters little.
void RunBlock(const Item& item, const TileTable& table, int64_t block, Scratch& scratch) {
  const bool whole = IsDirect(item) || item.product == Product::kExact || item.cols == 0;
  if (!whole) return RunBlockInChunks(item, table, block, scratch);
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
      const int64_t need = item.rows * PanelRowBytes(item);
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
    PackTile(item, task - item.first_panel_task);
  });
  return count;
}

void RunWave(Context& ctx, const TileTable& table, std::span<Item> items) {
  const TaskSize size = TaskSizeFor(items, ctx.pool.size());
  int64_t tasks = 0;
  for (Item& item : items) {
    item.task_blocks = TaskBlocks(item, size);
    item.first_task = tasks;
    tasks += (item.blocks + item.task_blocks - 1) / item.task_blocks;
  }
  const std::span<const Item> wave = items;
  auto* scratch = ctx.arena.Take<Scratch>(ctx.pool.size());
  ctx.pool.Run(tasks, [&](int64_t task, int worker) {
    const Item& item = FindItem(wave, task, &Item::first_task);
    const int64_t begin = (task - item.first_task) * item.task_blocks;
    const int64_t end = std::min(item.blocks, begin + item.task_blocks);
    for (int64_t block = begin; block < end; ++block) RunBlock(item, table, block, scratch[worker]);
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
  Activations result{.rows = rows, .cols = cols, .stride = (cols + 31) / 32 * 32};
  const int64_t stride = result.stride;
  float* padded = x_stride == stride && cols == stride ? nullptr : ctx.arena.Take<float>(rows * stride);
  const bool rounds = ctx.matmul == MatMulMode::kBf16 && cols > kExactCols;
  bf16* rounded = rounds ? ctx.arena.Take<bf16>(rows * stride) : nullptr;
  result.f32 = padded ? padded : x;
  result.rounded = rounded;
  if (!padded && !rounded) return result;
  const auto prepare_row = [&](int64_t row, int) {
    if (padded) {
      float* to = padded + row * stride;
      std::memcpy(to, x + row * x_stride, static_cast<size_t>(cols) * sizeof(float));
      std::fill(to + cols, to + stride, 0.0f);
    }
    if (rounded) {
      const float* from = result.f32 + row * stride;
      bf16* half = rounded + row * stride;
      for (int64_t i = 0; i < stride; ++i) half[i] = Round(from[i]);
    }
  };
  if (rows * cols < matmul::kForkElements) {
    for (int64_t row = 0; row < rows; ++row) prepare_row(row, 0);
  } else {
    ctx.pool.Run(rows, prepare_row);
  }
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
  const Activations* quantized_of = nullptr;  // jobs with the same input stand side by side
  matmul::Int16Rows quantized;
  for (const MatMulJob& job : jobs) {
    const int64_t chunk = chunk_rows(job);
    for (int64_t row = 0; row < job.rows; row += chunk) {
      matmul::Item item = matmul::MakeItem(ctx, table, job, row, std::min(chunk, job.rows - row));
      if (item.product == matmul::Product::kInt16) {
        if (quantized_of != job.x) quantized = matmul::QuantizeRows(ctx, *job.x);
        quantized_of = job.x;
        const bool split = table.split && job.rows <= matmul::kSplitRows;
        if (split && !quantized.split) quantized.split = matmul::SplitRows(ctx, *job.x, quantized);
        item.int16 = quantized;
        if (!split) item.int16.split = nullptr;
      }
      items[next++] = item;
    }
  }
  for (int64_t done = 0; done < count;) {
    const ArenaScope wave_scope(ctx.arena);
    const std::span<matmul::Item> rest(items + done, static_cast<size_t>(count - done));
    const int64_t fit = matmul::PreparePanels(ctx, rest);
    matmul::RunWave(ctx, table, rest.first(static_cast<size_t>(fit)));
    done += fit;
  }
}

void MatMul(Context& ctx, const Activations& x, const PackedMatrix& w, float* y, int64_t y_stride) {
  const MatMulJob job{&x, &w, y, y_stride, x.rows};
  MatMul(ctx, std::span(&job, 1));
}

}  // namespace kestrel
