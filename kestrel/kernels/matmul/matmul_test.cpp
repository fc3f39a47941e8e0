#include "kestrel/kernels/matmul/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kestrel/base/aligned.h"
#include "kestrel/base/rng.h"
#include "kestrel/kernels/matmul/tile.h"
#include "kestrel/kernels/ref/matmul_ref.h"

namespace kestrel {
namespace {

constexpr WeightType kTypes[] = {WeightType::kF32, WeightType::kBf16, WeightType::kMxfp4};
constexpr MatMulMode kModes[] = {MatMulMode::kBf16, MatMulMode::kF32};

// Random weights in file form (one byte off alignment), their exact values, and the packed matrix.
struct Weights {
  WeightType type;
  int64_t n, k;
  std::vector<std::byte> source;  // values from byte 1
  std::vector<uint8_t> scale;     // [n, k/32]
  std::vector<double> value;      // [n, k]
  AlignedBuffer packed;

  Weights(WeightType type_, int64_t n_, int64_t k_, uint64_t seed) : type(type_), n(n_), k(k_) {
    Rng rng(seed);
    value.resize(n * k);
    source.resize(n * k * 4 + 1);
    scale.resize(n * ((k + 31) / 32));
    for (uint8_t& s : scale) s = static_cast<uint8_t>(120 + rng.Below(12));
    for (int64_t i = 0; i < n * k; ++i) Fill(i, rng);
    Pack();
  }

  void Fill(int64_t i, Rng& rng) {
    const auto f = static_cast<float>(rng.Normal());
    if (type == WeightType::kF32) {
      std::memcpy(&source[1 + 4 * i], &f, 4);
      value[i] = f;
    } else if (type == WeightType::kBf16) {
      const bf16 h = ToBf16(f);
      std::memcpy(&source[1 + 2 * i], &h, 2);
      value[i] = ToFloat(h);
    } else {
      SetCode(i, static_cast<int>(rng.Below(16)));
    }
  }

  void SetCode(int64_t i, int code) {
    std::byte& b = source[1 + i / 2];
    const int shift = i % 2 * 4;
    b = (b & std::byte(0xf0 >> shift)) | std::byte(code << shift);
    const uint8_t s = scale[i / k * (k / 32) + i % k / 32];
    value[i] = kE2m1[code] * std::ldexp(1.0, s - 127);
  }

  void Pack() {
    packed = AlignedBuffer(PackedBytes(type, n, k));
    std::memset(packed.data(), 0xff, packed.size());  // packing must write every byte
    const int64_t middle = PackBlocks(n) / 2;
    PackRange(middle, PackBlocks(n));
    PackRange(0, middle);
  }

  void PackRange(int64_t begin, int64_t end) {
    const void* w = source.data() + 1;
    if (type == WeightType::kF32) PackF32(static_cast<const float*>(w), n, k, begin, end, packed.data());
    if (type == WeightType::kBf16) PackBf16(static_cast<const bf16*>(w), n, k, begin, end, packed.data());
    if (type == WeightType::kMxfp4) {
      PackMxfp4(static_cast<const uint8_t*>(w), scale.data(), n, k, begin, end, packed.data());
    }
  }

  PackedMatrix matrix() const { return {type, n, k, packed.data()}; }
};

std::vector<float> RandomX(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = static_cast<float>(rng.Normal());
  return x;
}

enum class Sums { kExact, kInt16, kRounded, kF32 };

Sums SumsOf(WeightType type, MatMulMode mode, int64_t k) {
  if (mode == MatMulMode::kF32 || type == WeightType::kF32) return Sums::kExact;
  if (type == WeightType::kMxfp4) return Sums::kInt16;
  return k > kExactCols ? Sums::kRounded : Sums::kF32;
}

// How far int16 activations may be from x: half a unit, of which the group's maximum is at least 2^14 (less the half
// that it may have been rounded up), or the least unit.
std::vector<double> QuantizationErrors(const float* x, int64_t k) {
  std::vector<double> error(static_cast<size_t>(k));
  for (int64_t g = 0; g < k; g += kMxfp4Group) {
    double largest = 0;
    for (int64_t i = g; i < g + kMxfp4Group; ++i) largest = std::max(largest, std::fabs(double{x[i]}));
    const double half_unit = std::max(largest * 0x1p-15 * (1 + 0x1p-15), 0x1p-126);
    std::fill_n(error.begin() + g, kMxfp4Group, half_unit);
  }
  return error;
}

// kExact: K sums in double, then one rounding. kInt16: the activations' errors, then one rounding for each group of 32.
// Else any order of K float32 additions, each with one rounding (VDPBF16PS: two), flushed denormals: the standard
// bound.
double Tolerance(const Weights& w, Sums sums, const float* x, const double* row, const ref::Dot& want) {
  const auto k = static_cast<double>(w.k);
  if (sums == Sums::kExact) {
    return FLT_EPSILON / 2 * std::fabs(want.value) + 0x1p-149 + k * DBL_EPSILON * want.magnitude;
  }
  if (sums != Sums::kInt16) return (k + 2) * (FLT_EPSILON * want.magnitude + FLT_MIN);
  const std::vector<double> error = QuantizationErrors(x, w.k);
  const ref::Dot off = ref::MatMulElement(error.data(), row, w.k);
  return off.magnitude + k / kMxfp4Group * FLT_EPSILON / 2 * (1 + FLT_EPSILON * k) * (want.magnitude + off.magnitude);
}

void ExpectRow(const Weights& w, MatMulMode mode, const float* x, const float* y) {
  const Sums sums = SumsOf(w.type, mode, w.k);
  std::vector<double> xd(x, x + w.k);
  if (sums == Sums::kRounded) {
    for (double& v : xd) v = ToFloat(ToBf16(static_cast<float>(v)));
  }
  for (int64_t n = 0; n < w.n; ++n) {
    const double* row = w.value.data() + n * w.k;
    const ref::Dot want = ref::MatMulElement(xd.data(), row, w.k);
    ASSERT_NEAR(y[n], want.value, Tolerance(w, sums, x, row, want)) << "output " << n;
  }
}

std::vector<float> Multiply(Isa isa, MatMulMode mode, int threads, const Weights& w, const std::vector<float>& x,
                            int64_t rows, int64_t y_stride) {
  ThreadPool pool(threads);
  Arena arena;
  Context ctx{pool, arena, isa, mode};
  std::vector<float> y(static_cast<size_t>(rows * y_stride), -77.0f);
  const Activations a = PrepareActivations(ctx, x.data(), rows, w.k, w.k);
  const PackedMatrix m = w.matrix();
  MatMul(ctx, a, m, y.data(), y_stride);
  return y;
}

template <class F>
void ForEachCase(F&& f) {
  for (Isa isa : AvailableIsas()) {
    for (MatMulMode mode : kModes) {
      for (WeightType type : kTypes) {
        SCOPED_TRACE(testing::Message() << Name(isa) << " mode " << int(mode) << " type " << int(type));
        f(isa, mode, type);
      }
    }
  }
}

void ExpectRowsAreRight(Isa isa, MatMulMode mode, const Weights& w, int64_t rows) {
  SCOPED_TRACE(testing::Message() << "rows " << rows << " k " << w.k);
  const std::vector<float> x = RandomX(rows * w.k, 100 + rows);
  const int64_t stride = w.n + 3;
  const std::vector<float> y = Multiply(isa, mode, 2, w, x, rows, stride);
  for (int64_t r = 0; r < rows; ++r) {
    ExpectRow(w, mode, &x[r * w.k], &y[r * stride]);
    for (int64_t n = w.n; n < stride; ++n) ASSERT_EQ(y[r * stride + n], -77.0f) << "written past the row";
  }
}

TEST(MatMul, MatchesReferenceAtEveryRowCount) {
  ForEachCase([](Isa isa, MatMulMode mode, WeightType type) {
    const bool fp4 = type == WeightType::kMxfp4;
    const Weights narrow(type, 45, fp4 ? 96 : 83, 1);
    const Weights wide(type, 45, fp4 ? kExactCols + 32 : kExactCols + 19, 1);
    for (int64_t rows = 1; rows <= 33; ++rows) {
      ExpectRowsAreRight(isa, mode, narrow, rows);
      ExpectRowsAreRight(isa, mode, wide, rows);
    }
  });
}

TEST(MatMul, MatchesReferenceAtOddShapes) {
  ForEachCase([](Isa isa, MatMulMode mode, WeightType type) {
    for (int64_t n : {1, 2, 15, 16, 17, 31, 32, 33, 64, 65}) {
      for (int64_t k : {1, 2, 3, 7, 8, 9, 31, 32, 33, 64, 65, 1056}) {
        if (type == WeightType::kMxfp4 && k % 32) continue;
        const Weights w(type, n, k, n * 1000 + k);
        for (int64_t rows : {1, 3, 13}) {
          SCOPED_TRACE(testing::Message() << rows << " x " << n << " x " << k);
          const std::vector<float> x = RandomX(rows * k, n + k);
          const std::vector<float> y = Multiply(isa, mode, 1, w, x, rows, n);
          for (int64_t r = 0; r < rows; ++r) ExpectRow(w, mode, &x[r * k], &y[r * n]);
        }
      }
    }
  });
}

TEST(MatMul, RowHasTheSameBitsAloneAndInABatchOnAnyThreads) {
  ForEachCase([](Isa isa, MatMulMode mode, WeightType type) {
    const Weights w(type, 77, 1120, 2);  // longer than two L1 chunks of every type
    const std::vector<float> x = RandomX(300 * w.k, 3);
    const std::vector<float> all = Multiply(isa, mode, 3, w, x, 300, w.n);
    for (int64_t rows : {2, 5, 8, 9, 12, 16, 31}) {
      const std::vector<float> some = Multiply(isa, mode, 2, w, x, rows, w.n);
      ASSERT_EQ(0, std::memcmp(some.data(), all.data(), some.size() * 4)) << rows << " rows";
    }
    for (int64_t r : {0, 1, 11, 12, 150, 299}) {
      const std::vector<float> row(x.begin() + r * w.k, x.begin() + (r + 1) * w.k);
      const std::vector<float> alone = Multiply(isa, mode, 1, w, row, 1, w.n);
      ASSERT_EQ(0, std::memcmp(alone.data(), &all[r * w.n], w.n * 4)) << "row " << r;
    }
  });
}

TEST(MatMul, ManyJobsWithRowListsEqualSingleCalls) {
  ForEachCase([](Isa isa, MatMulMode mode, WeightType type) {
    const int64_t k = 64;
    const int64_t tokens = 40;
    const std::vector<float> x = RandomX(tokens * k, 4);
    ThreadPool pool(2);
    Arena arena;
    Context ctx{pool, arena, isa, mode};
    const Activations a = PrepareActivations(ctx, x.data(), tokens, k, k);
    std::vector<Weights> weights;
    std::vector<PackedMatrix> matrices;
    for (int e = 0; e < 6; ++e) weights.emplace_back(type, 20 + 13 * e, k, 50 + e);
    for (const Weights& w : weights) matrices.push_back(w.matrix());
    // Expert e takes e^2 tokens from 3 on, backwards, and writes to every second row.
    std::vector<std::vector<int32_t>> from(6), to(6);
    std::vector<std::vector<float>> y(6);
    std::vector<MatMulJob> jobs;
    for (int e = 0; e < 6; ++e) {
      for (int i = 0; i < e * e; ++i) {
        from[e].push_back(3 + e * e - i);
        to[e].push_back(2 * i);
      }
      y[e].assign(static_cast<size_t>(2 * e * e * weights[e].n), -5.0f);
      jobs.push_back({&a, &matrices[e], y[e].data(), weights[e].n, e * e, from[e].data(), to[e].data()});
    }
    MatMul(ctx, jobs);
    for (int e = 0; e < 6; ++e) {
      const int64_t n = weights[e].n;
      for (int i = 0; i < e * e; ++i) {
        const std::vector<float> row(x.begin() + from[e][i] * k, x.begin() + (from[e][i] + 1) * k);
        const std::vector<float> alone = Multiply(isa, mode, 1, weights[e], row, 1, n);
        ASSERT_EQ(0, std::memcmp(alone.data(), &y[e][2 * i * n], n * 4)) << "expert " << e << " row " << i;
        ASSERT_EQ(y[e][(2 * i + 1) * n], -5.0f);
      }
    }
  });
}

TEST(MatMul, JobsShareAPanelOnlyWhenItIsTheSame) {
  ForEachCase([](Isa isa, MatMulMode mode, WeightType type) {
    const Weights w(type, 32, 64, 5);
    const PackedMatrix m = w.matrix();
    const std::vector<float> x = RandomX(40 * w.k, 6);
    ThreadPool pool(2);
    Arena arena;
    Context ctx{pool, arena, isa, mode};
    const Activations a = PrepareActivations(ctx, x.data(), 40, w.k, w.k);
    std::vector<int32_t> rows(20);
    for (int i = 0; i < 20; ++i) rows[i] = 39 - i;
    std::vector<float> y(3 * 20 * 32);
    const MatMulJob jobs[] = {
        {&a, &m, &y[0], 32, 20}, {&a, &m, &y[640], 32, 20, rows.data()}, {&a, &m, &y[1280], 32, 20}};
    MatMul(ctx, jobs);
    for (int r = 0; r < 20; ++r) {
      ExpectRow(w, mode, &x[r * w.k], &y[r * 32]);
      ExpectRow(w, mode, &x[(39 - r) * w.k], &y[640 + r * 32]);
      ExpectRow(w, mode, &x[r * w.k], &y[1280 + r * 32]);
    }
  });
}

TEST(MatMul, NanAndInfinityStayInTheirRow) {
  ForEachCase([](Isa isa, MatMulMode mode, WeightType type) {
    const Weights w(type, 33, 64, 7);
    for (int64_t rows : {3, 20}) {
      std::vector<float> x = RandomX(rows * w.k, 8);
      const std::vector<float> clean = Multiply(isa, mode, 2, w, x, rows, w.n);
      x[1 * w.k + 5] = std::numeric_limits<float>::quiet_NaN();
      x[2 * w.k + 63] = std::numeric_limits<float>::infinity();
      const std::vector<float> y = Multiply(isa, mode, 2, w, x, rows, w.n);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t n = 0; n < w.n; ++n) {
          const float got = y[r * w.n + n];
          const bool right = r == 1 ? std::isnan(got) : r == 2 ? !std::isfinite(got) : got == clean[r * w.n + n];
          ASSERT_TRUE(right) << "row " << r << " output " << n << ": " << got;
        }
      }
    }
  });
}

TEST(MatMul, Mxfp4CodesAndScalesAreExact) {
  for (Isa isa : AvailableIsas()) {
    for (MatMulMode mode : kModes) {
      SCOPED_TRACE(testing::Message() << Name(isa) << " mode " << int(mode));
      Weights w(WeightType::kMxfp4, 16, 64, 9);
      const uint8_t scales[] = {0, 1, 2, 100, 126, 127, 128, 200, 250, 254, 127, 127, 127, 127, 127, 127};
      std::memcpy(w.scale.data(), scales, 16);  // outputs 0..7, two groups each
      for (int64_t i = 0; i < 16 * 64; ++i) w.SetCode(i, static_cast<int>(i * 7 % 16));
      w.source[1 + 2 * 32] = std::byte{0x21};  // output 2, k = 0 and 1; scale 126
      w.value[2 * 64] = 0.25;
      w.value[2 * 64 + 1] = 0.5;
      w.source[1 + 5 * 32] = std::byte{0x21};  // output 5: scale 127
      w.value[5 * 64] = 0.5;
      w.value[5 * 64 + 1] = 1.0;
      w.Pack();
      // Row k is the unit vector k, so y is the weight itself.
      std::vector<float> x(64 * 64);
      for (int k = 0; k < 64; ++k) x[k * 64 + k] = 1.0f;
      const std::vector<float> y = Multiply(isa, mode, 1, w, x, 64, 16);
      for (int k = 0; k < 64; ++k) {
        for (int n = 0; n < 16; ++n) {
          const double want = w.value[n * 64 + k];
          const float f =
              std::fabs(want) > FLT_MAX ? std::copysign(INFINITY, static_cast<float>(want)) : static_cast<float>(want);
          ASSERT_EQ(y[k * 16 + n], f) << "k " << k << " output " << n;
        }
      }
    }
  }
}

TEST(Pack, TransposedEqualsPlain) {
  for (int64_t n : {1, 31, 32, 50}) {
    for (int64_t k : {1, 8, 37}) {
      const int64_t stride = n + 5;
      const Weights plain(WeightType::kBf16, n, k, 11);
      std::vector<bf16> w(static_cast<size_t>(k * stride), bf16{0x7fc0});
      for (int64_t i = 0; i < n * k; ++i) std::memcpy(&w[i % k * stride + i / k], &plain.source[1 + 2 * i], 2);
      AlignedBuffer out(plain.packed.size());
      std::memset(out.data(), 0xff, out.size());
      PackBf16Transposed(w.data(), stride, n, k, 0, PackBlocks(n), out.data());
      ASSERT_EQ(0, std::memcmp(out.data(), plain.packed.data(), out.size())) << n << " x " << k;
    }
  }
}

TEST(Pack, LayoutIsTheDocumentedOne) {
  const Weights w(WeightType::kMxfp4, 40, 160, 12);
  const auto* bytes = reinterpret_cast<const uint8_t*>(w.packed.data());
  const size_t block_bytes = PackedBlockBytes(WeightType::kMxfp4, 160);
  for (int64_t n = 0; n < 40; ++n) {
    const uint8_t* block = bytes + n / 32 * block_bytes;
    for (int64_t k = 0; k < 160; ++k) {
      uint32_t word;
      std::memcpy(&word, block + k / 64 * 1088 + 64 + (k % 64 / 8 * 32 + n % 32) * 4, 4);
      const int code = word >> (k % 2 * 16 + k % 8 / 2 * 4) & 15;
      const uint8_t scale = block[k / 64 * 1088 + k % 64 / 32 * 32 + n % 32];
      ASSERT_EQ(kE2m1[code] * std::ldexp(1.0, scale - 127), w.value[n * 160 + k]);
    }
  }
}

// What may differ: the order of sums in float32, so only products of bfloat16 weights in the mode kBf16.
TEST(MatMul, ExactSumsHaveTheSameBitsOnEveryIsa) {
  ForEachCase([](Isa isa, MatMulMode mode, WeightType type) {
    if (mode == MatMulMode::kBf16 && type == WeightType::kBf16) return;
    for (int64_t k : {96, 1120}) {
      const Weights w(type, 77, k, 15);
      for (int64_t rows : {1, 5, 8, 29}) {
        std::vector<float> x = RandomX(rows * k, 16);
        for (int64_t i = 0; i < 32; ++i) x[i] = std::ldexp(x[i], -120 - static_cast<int>(i));  // denormals too
        for (int64_t i = 32; i < 64; ++i) x[i] *= 1e30f;
        const std::vector<float> want = Multiply(Isa::kPortable, mode, 1, w, x, rows, w.n);
        const std::vector<float> got = Multiply(isa, mode, 2, w, x, rows, w.n);
        ASSERT_EQ(0, std::memcmp(want.data(), got.data(), want.size() * 4)) << rows << " rows, k " << k;
      }
    }
  });
}

TEST(MatMul, DoublesKeepWhatCancellationLeaves) {
  ForEachCase([](Isa isa, MatMulMode mode, WeightType type) {
    if (SumsOf(type, mode, 1024) != Sums::kExact) return;
    Weights w(type, 32, 1024, 17);
    for (int64_t i = 0; i < w.n * w.k; ++i) {  // all ones
      const float one = 1;
      const bf16 half = ToBf16(one);
      if (type == WeightType::kF32) std::memcpy(&w.source[1 + 4 * i], &one, 4);
      if (type == WeightType::kBf16) std::memcpy(&w.source[1 + 2 * i], &half, 2);
      if (type == WeightType::kMxfp4) w.SetCode(i, 2);
    }
    std::fill(w.scale.begin(), w.scale.end(), uint8_t{127});
    w.Pack();
    for (int64_t rows : {1, 9}) {
      std::vector<float> x(static_cast<size_t>(rows * w.k), 1.0f);
      for (int64_t r = 0; r < rows; ++r) x[r * w.k] = 0x1p26f, x[(r + 1) * w.k - 1] = -0x1p26f;
      for (float y : Multiply(isa, mode, 1, w, x, rows, w.n)) ASSERT_EQ(y, 1022.0f);  // float32 sums: 0
    }
  });
}

TEST(Activations, ArePaddedAndRoundedToNearestEven) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float hard[] = {1.0f,     1.00390625f, 1.01171875f, -0.0f, nan, -nan,         INFINITY,
                        -3.3e38f, FLT_MAX,     1e-40f,      0.1f,  2,   1 + 0x1p-23f, 3};
  ThreadPool pool(1);
  Arena arena;
  Context ctx{pool, arena};
  for (int64_t cols : {int64_t{7}, kExactCols, kExactCols + 7}) {
    std::vector<float> x(static_cast<size_t>(2 * cols));
    for (size_t i = 0; i < x.size(); ++i) x[i] = hard[i % 14];
    const Activations a = PrepareActivations(ctx, x.data(), 2, cols, cols);
    ASSERT_EQ(a.stride, (cols + 31) / 32 * 32);
    ASSERT_EQ(a.rounded != nullptr, cols > kExactCols);
    for (int64_t i = 0; i < 2 * a.stride; ++i) {
      const int64_t r = i / a.stride, k = i % a.stride;
      const float want = k < cols ? x[static_cast<size_t>(r * cols + k)] : 0;
      ASSERT_EQ(0, std::memcmp(a.f32 + i, &want, 4));
      if (a.rounded != nullptr) {
        ASSERT_EQ(a.rounded[i], ToBf16(want));
      }
    }
  }
}

TEST(MatMul, DecodingTakesNothingNewFromTheArena) {
  const Weights w(WeightType::kMxfp4, 256, 512, 13);
  const PackedMatrix m = w.matrix();
  const std::vector<float> x = RandomX(w.k, 14);
  std::vector<float> y(256);
  ThreadPool pool(2);
  Arena arena(1 << 20);
  Context ctx{pool, arena};
  for (int i = 0; i < 1000; ++i) {
    const ArenaScope scope(arena);
    const Activations a = PrepareActivations(ctx, x.data(), 1, w.k, w.k);
    MatMul(ctx, a, m, y.data(), 256);
  }
  EXPECT_EQ(arena.growths(), 0);
}

}  // namespace
}  // namespace kestrel
