// Sharing a loop among the pool's threads, where it is worth a fork (about 2 us; asked for from about 20 us of work).
// Pieces have a fixed size, whatever the thread count, so that what a piece computes never depends on it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kestrel/tensor/context.h"

namespace kestrel {

// f(begin, end) over [0, n) in pieces of `piece`; on the caller alone when n * cost_ns is under 20 us.
template <class F>
void ForPieces(Context& ctx, int64_t n, int64_t piece, double cost_ns, F&& f) {
  const int64_t pieces = (n + piece - 1) / piece;
  const auto run = [&](int64_t p, int) { f(p * piece, std::min(n, (p + 1) * piece)); };
  if (pieces <= 1 || ctx.pool.size() == 1 || static_cast<double>(n) * cost_ns < 20e3) {
    for (int64_t p = 0; p < pieces; ++p) run(p, 0);
  } else {
    ctx.pool.Run(pieces, run);
  }
}

// The same over rows: pieces of about 5 us each.
template <class F>
void ForRows(Context& ctx, int64_t rows, double row_ns, F&& f) {
  const int64_t piece = std::clamp<int64_t>(static_cast<int64_t>(5e3 / std::max(row_ns, 1.0)), 1, 256);
  ForPieces(ctx, rows, piece, row_ns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r);
  });
}

}  // namespace kestrel
