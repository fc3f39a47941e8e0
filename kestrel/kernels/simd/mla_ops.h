// The inner loops of latent attention, one table for each arithmetic. A "unit" is 4 bytes of a product's inner
// dimension: one float32, or two neighbouring bfloat16 values (kinner = 2) that VDPBF16PS multiplies at once.
//
// All matrices keep their lanes last: heads (decode) or prompt rows (prefill) are the lanes, 16 to a group, at most
// three groups to a panel. Scores are [keys, lanes], so the softmax over keys never crosses lanes, and every lane's
// arithmetic is the same whatever shares its panel: this is what makes bits independent of batch, threads and chunking.
#pragma once

#include <cstdint>

#include "kestrel/base/cpu.h"

namespace kestrel {

inline constexpr int64_t kMlaLanes = 16;     // lanes of a group: one 512-bit vector
inline constexpr int64_t kMlaMaxGroups = 3;  // 3 groups x 8 rows fill 24 of the 32 vector registers with sums
inline constexpr int64_t kMlaRowBlock = 8;   // rows of a register tile; row counts given to panel() are multiples

// Memory to fetch into L2 while a panel is multiplied, in even shares between its row blocks. Null: nothing.
struct MlaPrefetch {
  const void* at = nullptr;
  int64_t bytes = 0;
  // Share `block` of `blocks`.
  void Share(int64_t block, int64_t blocks) const {
    if (at == nullptr) return;
    const char* p = static_cast<const char*>(at);
    for (int64_t b = bytes * block / blocks; b < bytes * (block + 1) / blocks; b += 64) __builtin_prefetch(p + b, 0, 2);
  }
};

struct MlaOps {
  int64_t inner;  // values in a unit: 1 (float32) or 2 (bfloat16 pairs)

  // c[m, lane] = (factor ? factor[lane] * c[m, lane] : 0) + sum over u of a[m, u] . b[u, lane]
  // `ahead` is prefetched meanwhile. a: unit (m, u) at a + m * a_row + u * a_unit (in units); b: [units, lanes]; c:
  // [rows, lanes]; lanes = 16 * groups.
  void (*panel)(const uint32_t* a, int64_t a_row, int64_t a_unit, const uint32_t* b, int64_t rows, int64_t units,
                int64_t groups, const float* factor, float* c, const MlaPrefetch& ahead);

  // dst[u, lane] = units of src rows: lane's values are src + lane * stride, `count` lanes, the rest zero.
  // dst: [units, lanes]; values = units * inner.
  void (*pack_f32)(const float* src, int64_t stride, int64_t count, int64_t units, int64_t groups, uint32_t* dst);
  void (*pack_bf16)(const uint16_t* src, int64_t stride, int64_t count, int64_t units, int64_t groups, uint32_t* dst);

  // Row-major values to row-major units, n values (a multiple of inner).
  void (*units_f32)(const float* src, int64_t n, uint32_t* dst);
  void (*units_bf16)(const uint16_t* src, int64_t n, uint32_t* dst);

  // Units over keys. dst[u, c], u < 64 / inner, c < n: the values of keys u * inner .. of channel c; keys from `keys`
  // on are zero, whatever src holds there. src: [64, stride] values; dst: [64 / inner, dst_stride] units.
  void (*across_f32)(const float* src, int64_t stride, int64_t keys, int64_t n, uint32_t* dst, int64_t dst_stride);
  void (*across_bf16)(const uint16_t* src, int64_t stride, int64_t keys, int64_t n, uint32_t* dst, int64_t dst_stride);

  // out[lane * stride + c] = values[c, lane] / sum[lane] for lane < count, c < channels. A rescaled sum can underflow
  // to -0, and a further tile that the lane sees nothing of would make it +0: 0 is added so that both are +0.
  void (*finish)(const float* values, const float* sum, int64_t groups, int64_t count, int64_t channels, float* out,
                 int64_t stride);
};

// One tile's step of the online softmax, float32: s [64, lanes] raw scores in, probabilities out (zero from
// visible[lane] on); largest, sum [lanes] are updated and factor [lanes] is what earlier sums must be multiplied by.
// visible null: all 64 keys.
using MlaSoftmaxTile = void (*)(float* s, int64_t groups, float scale, const int32_t* visible, float* largest,
                                float* sum, float* factor);

const MlaOps& GetMlaOps(Isa isa, bool bf16_products);
MlaSoftmaxTile GetMlaSoftmaxTile(Isa isa);

// The VDPBF16PS table; only on a CPU that has it. Null where the compiler's target has no such instruction.
const MlaOps* MlaOpsBf16();

}  // namespace kestrel
