#include "kestrel/kernels/kda/kda.h"

#include <cmath>
#include <cstring>

#include "kestrel/base/check.h"
#include "kestrel/kernels/kda/kda_head.h"

namespace kestrel {
namespace {

using kda::HeadTask;
using kda::kTile;
using kda::Layout;

int Pending(const std::byte* state) {
  int32_t pending;
  std::memcpy(&pending, state, sizeof pending);
  KESTREL_CHECK(pending >= 0 && pending < kTile);
  return pending;
}

kda::ForwardHead Choose(Isa isa, int dim) {
#if defined(__x86_64__)
  if (dim % 16 == 0) {
    if (isa == Isa::kAvx512 || isa == Isa::kAvx512Bf16) return kda::ForwardHeadAvx512;
    if (isa == Isa::kAvx2) return kda::ForwardHeadAvx2;
  }
#else
  (void)isa, (void)dim;
#endif
  return kda::ForwardHeadPortable;
}

HeadTask MakeTask(const KdaShape& shape, const KdaSegment& segment, int head, const KdaInputs& in, float* out) {
  const Layout layout(shape.head_dim);
  const int64_t stride = int64_t{shape.heads} * shape.head_dim;
  const int64_t offset = segment.first_row * stride + int64_t{head} * shape.head_dim;
  HeadTask t{};
  t.dim = shape.head_dim;
  t.bounded = shape.bounded;
  t.lower_bound = shape.lower_bound;
  t.s = reinterpret_cast<float*>(segment.state + kda::kHeaderBytes) + head * layout.HeadFloats();
  t.log_decay = t.s + layout.StateFloats();
  t.decay = t.log_decay + layout.padded;
  t.keys = t.decay + layout.padded;
  t.values = t.keys + kTile * layout.padded;
  t.peaks = t.values + kTile * layout.padded;
  t.pending = Pending(segment.state);
  t.rows = segment.rows;
  t.q = in.q + offset;
  t.k = in.k + offset;
  t.v = in.v + offset;
  t.z = in.z + offset;
  t.stride = stride;
  t.beta = in.beta + segment.first_row * shape.heads + head;
  t.beta_stride = shape.heads;
  t.dt_bias = in.dt_bias + int64_t{head} * shape.head_dim;
  t.a = in.a[head];
  t.out = out + offset;
  return t;
}

}  // namespace

size_t KdaStateBytes(const KdaShape& shape) {
  return static_cast<size_t>(kda::kHeaderBytes + shape.heads * Layout(shape.head_dim).HeadFloats() * 4);
}

void KdaForward(Context& context, const KdaShape& shape, std::span<const KdaSegment> segments, const KdaInputs& inputs,
                float* out) {
  const kda::ForwardHead forward = Choose(context.isa, shape.head_dim);
  const int64_t scratch_floats = (kda::ScratchFloats(shape.head_dim) + 15) / 16 * 16;
  const ArenaScope scope(context.arena);
  float* scratch = context.arena.Take<float>(scratch_floats * context.pool.size());
  context.pool.Run(static_cast<int64_t>(segments.size()) * shape.heads, [&](int64_t task, int worker) {
    const KdaSegment& segment = segments[static_cast<size_t>(task / shape.heads)];
    HeadTask t = MakeTask(shape, segment, static_cast<int>(task % shape.heads), inputs, out);
    t.narrow = context.matmul == MatMulMode::kBf16;
    t.scratch = scratch + worker * scratch_floats;
    forward(t);
  });
  // Only now: every head reads the count of its segment.
  for (const KdaSegment& segment : segments) {
    const int32_t pending = static_cast<int32_t>((Pending(segment.state) + segment.rows) % kTile);
    std::memcpy(segment.state, &pending, sizeof pending);
  }
}

void KdaMaterialize(const KdaShape& shape, const std::byte* state, float* s) {
  const Layout layout(shape.head_dim);
  const int64_t dim = shape.head_dim;
  const int pending = Pending(state);
  for (int head = 0; head < shape.heads; ++head) {
    const float* base = reinterpret_cast<const float*>(state + kda::kHeaderBytes) + head * layout.HeadFloats();
    const float* log_decay = base + layout.StateFloats();
    const float* keys = log_decay + 2 * layout.padded;
    const float* values = keys + kTile * layout.padded;
    for (int64_t d = 0; d < dim; ++d) {
      const float decay = pending > 0 ? std::exp2(log_decay[d]) : 1.0f;
      for (int64_t e = 0; e < dim; ++e) {
        float sum = decay * base[layout.Index(d, e)];
        for (int j = 0; j < pending; ++j) sum += keys[j * layout.padded + d] * values[j * layout.padded + e];
        s[(head * dim + d) * dim + e] = sum;
      }
    }
  }
}

}  // namespace kestrel
