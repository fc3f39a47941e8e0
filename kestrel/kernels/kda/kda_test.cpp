#include "kestrel/kernels/kda/kda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kestrel/base/aligned.h"
#include "kestrel/base/rng.h"
#include "kestrel/kernels/ref/kda_ref.h"

namespace kestrel {
namespace {

using Floats = std::vector<float>;

// Random inputs of a call and a place for its outputs.
struct Problem {
  KdaShape shape;
  int64_t rows;
  Floats q, k, v, z, beta, dt_bias, a;

  Problem(KdaShape s, int64_t n, uint64_t seed) : shape(s), rows(n) {
    Rng rng(seed);
    const auto fill = [&rng](Floats& x, int64_t count, double scale, double shift = 0) {
      x.resize(static_cast<size_t>(count));
      for (float& value : x) value = static_cast<float>(shift + scale * rng.Normal());
    };
    const int64_t width = int64_t{s.heads} * s.head_dim;
    for (Floats* x : {&q, &k, &v}) fill(*x, n * width, 1);
    fill(z, n * width, 2, -2);
    fill(beta, n * s.heads, 2);
    fill(dt_bias, width, 1);
    for (int h = 0; h < s.heads; ++h) a.push_back(static_cast<float>(std::exp(rng.Normal())));
  }
  int64_t width() const { return int64_t{shape.heads} * shape.head_dim; }
  KdaInputs Inputs(int64_t row = 0) const {
    return {q.data() + row * width(),
            k.data() + row * width(),
            v.data() + row * width(),
            z.data() + row * width(),
            beta.data() + row * shape.heads,
            dt_bias.data(),
            a.data()};
  }
};

struct Machine {
  explicit Machine(Isa isa, MatMulMode mode = MatMulMode::kF32, int threads = 1)
      : pool(threads), arena(1 << 20), context{pool, arena, isa, mode} {}
  ThreadPool pool;
  Arena arena;
  Context context;
};

AlignedBuffer NewState(const KdaShape& shape) { return AlignedBuffer(KdaStateBytes(shape)); }

// Feeds rows in pieces of the given sizes, the last repeated.
Floats RunPieces(Context& context, const Problem& p, const std::vector<int64_t>& pieces, std::byte* state) {
  Floats out(static_cast<size_t>(p.rows * p.width()));
  size_t piece = 0;
  for (int64_t row = 0; row < p.rows;) {
    const int64_t count = std::min(pieces[piece], p.rows - row);
    const KdaSegment segment{state, 0, count};
    KdaForward(context, p.shape, {&segment, 1}, p.Inputs(row), out.data() + row * p.width());
    row += count;
    if (piece + 1 < pieces.size()) ++piece;
  }
  return out;
}

Floats Materialize(const KdaShape& shape, const AlignedBuffer& state) {
  Floats s(static_cast<size_t>(shape.heads) * shape.head_dim * shape.head_dim);
  KdaMaterialize(shape, state.data(), s.data());
  return s;
}

double RelativeError(const float* got, const double* want, size_t count) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < count; ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / std::max(norm, 1e-300));
}

struct Errors {
  double out = 0, state = 0;  // relative, in the 2-norm, of the worst head
};
Errors CompareWithReference(const Problem& p, const Floats& out, const Floats& s) {
  Errors worst;
  const int64_t dim = p.shape.head_dim;
  for (int h = 0; h < p.shape.heads; ++h) {
    std::vector<double> want, state(static_cast<size_t>(dim * dim), 0.0);
    ref::Kda(p.rows, dim, p.q.data() + h * dim, p.k.data() + h * dim, p.v.data() + h * dim, p.z.data() + h * dim,
             p.width(), p.beta.data() + h, p.shape.heads, p.dt_bias.data() + h * dim, p.a[h], p.shape.bounded,
             p.shape.lower_bound, state, want);
    Floats got;
    for (int64_t t = 0; t < p.rows; ++t) {
      got.insert(got.end(), out.begin() + t * p.width() + h * dim, out.begin() + t * p.width() + (h + 1) * dim);
    }
    worst.out = std::max(worst.out, RelativeError(got.data(), want.data(), got.size()));
    worst.state = std::max(worst.state, RelativeError(s.data() + h * dim * dim, state.data(), state.size()));
  }
  return worst;
}

// Sums of dim terms in a chain, and about 64 roundings beside them (16 decays, exponentials, the substitution).
double Tolerance(int dim) { return 0x1p-24 * (dim + 64); }
// Rounding to levels of 1/8191 of the largest, which is about 4 times the root mean square: 4 / 8191 / sqrt(12), for S
// and for x, and beta v - .. may cancel by a few times.
constexpr double kInt16Tolerance = 4 * 2 * 4 / 8191.0 / 3.46;

bool RoundsToInt16(Isa isa, MatMulMode mode, int dim) {
  return mode == MatMulMode::kBf16 && (isa == Isa::kAvx512 || isa == Isa::kAvx512Bf16) && dim % 16 == 0;
}

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class KdaOnEveryIsa : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, KdaOnEveryIsa, testing::ValuesIn(AvailableIsas()),
                         [](const auto& isa) { return std::string(Name(isa.param)); });

TEST_P(KdaOnEveryIsa, AgreesWithTheTokenRecurrence) {
  for (const MatMulMode mode : {MatMulMode::kF32, MatMulMode::kBf16}) {
    for (const bool bounded : {true, false}) {
      for (const int dim : {1, 3, 7, 16, 32, 48, 127, 128, 130, 144}) {
        Machine m(GetParam(), mode);
        const Problem p({2, dim, bounded, -5}, 83, 11 + dim);
        AlignedBuffer state = NewState(p.shape);
        const Floats out = RunPieces(m.context, p, {p.rows}, state.data());
        const Errors e = CompareWithReference(p, out, Materialize(p.shape, state));
        const bool rounds = RoundsToInt16(GetParam(), mode, dim);
        EXPECT_LT(e.out, rounds ? kInt16Tolerance : Tolerance(dim)) << dim << " " << bounded;
        EXPECT_LT(e.state, rounds ? kInt16Tolerance : Tolerance(dim)) << dim << " " << bounded;
      }
    }
  }
}

TEST_P(KdaOnEveryIsa, EveryLengthFrom0To65) {
  Machine m(GetParam());
  for (int64_t rows = 0; rows <= 65; ++rows) {
    const Problem p({2, 16, true, -5}, rows, 100 + rows);
    AlignedBuffer state = NewState(p.shape);
    const Floats out = RunPieces(m.context, p, {rows}, state.data());
    const Errors e = CompareWithReference(p, out, Materialize(p.shape, state));
    EXPECT_LT(e.out, Tolerance(16)) << rows;
    EXPECT_LT(e.state, Tolerance(16)) << rows;
  }
}

TEST_P(KdaOnEveryIsa, ChunkingAndThreadsDoNotChangeABit) {
  for (const MatMulMode mode : {MatMulMode::kF32, MatMulMode::kBf16}) {
    for (const int dim : {5, 16, 80, 128}) {
      const Problem p({3, dim, dim != 80, -5}, 147, 7);
      Machine one(GetParam(), mode);
      AlignedBuffer whole_state = NewState(p.shape);
      const Floats whole = RunPieces(one.context, p, {p.rows}, whole_state.data());
      Rng rng(5);
      std::vector<int64_t> random_pieces(100);
      for (int64_t& n : random_pieces) n = static_cast<int64_t>(rng.Below(20));
      random_pieces.back() = 1;
      int threads = 1;
      for (const auto& pieces : {std::vector<int64_t>{1}, {7}, {16}, {17}, {64}, {3, 0, 40, 1}, random_pieces}) {
        Machine m(GetParam(), mode, threads);
        threads = threads % 3 + 1;
        AlignedBuffer state = NewState(p.shape);
        // A new state is zero, but the slots of pending rows and decays may hold anything.
        const size_t head = (state.size() - 64) / p.shape.heads;
        const size_t s_bytes = (static_cast<size_t>((dim + 15) / 16) * ((dim + 1) / 2) * 32 * 4 + 63) / 64 * 64;
        for (int h = 0; h < p.shape.heads; ++h)
          std::memset(state.data() + 64 + h * head + s_bytes, 0x7f, head - s_bytes);
        EXPECT_TRUE(SameBits(whole, RunPieces(m.context, p, pieces, state.data()))) << dim << " " << pieces[0];
        EXPECT_TRUE(SameBits(Materialize(p.shape, whole_state), Materialize(p.shape, state)))
            << dim << " " << pieces[0];
      }
    }
  }
}

TEST_P(KdaOnEveryIsa, SegmentsOfOneCallDoNotSeeEachOther) {
  for (const MatMulMode mode : {MatMulMode::kF32, MatMulMode::kBf16}) {
    const Problem p({2, 32, true, -5}, 60, 21);
    Machine m(GetParam(), mode, 2);
    const int64_t cuts[] = {0, 1, 1, 34, 51, 60};  // one of no rows
    Floats together(p.q.size()), alone(p.q.size());
    std::vector<AlignedBuffer> states_together, states_alone;
    for (int i = 0; i < 5; ++i) {
      states_together.push_back(NewState(p.shape));
      states_alone.push_back(NewState(p.shape));
    }
    for (int pass = 0; pass < 2; ++pass) {  // the second from states in mid tile
      std::vector<KdaSegment> segments;
      for (int i = 0; i < 5; ++i) {
        segments.push_back({states_together[i].data(), cuts[i], cuts[i + 1] - cuts[i]});
        const KdaSegment single{states_alone[i].data(), cuts[i], cuts[i + 1] - cuts[i]};
        KdaForward(m.context, p.shape, {&single, 1}, p.Inputs(), alone.data());
      }
      KdaForward(m.context, p.shape, segments, p.Inputs(), together.data());
      EXPECT_TRUE(SameBits(together, alone));
    }
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(SameBits(Materialize(p.shape, states_together[i]), Materialize(p.shape, states_alone[i])));
    }
  }
}

TEST_P(KdaOnEveryIsa, ANanStaysInItsSequence) {
  const Problem p({1, 16, true, -5}, 40, 3);
  for (const MatMulMode mode : {MatMulMode::kF32, MatMulMode::kBf16}) {
    Machine m(GetParam(), mode);
    AlignedBuffer sick = NewState(p.shape), well = NewState(p.shape), alone = NewState(p.shape);
    Problem infected = p;  // a whole tile, so that the NaN is in S
    infected.k[3] = std::nanf("");
    Floats unused(p.q.size());
    const KdaSegment tile{sick.data(), 0, 16};
    KdaForward(m.context, p.shape, {&tile, 1}, infected.Inputs(), unused.data());
    const KdaSegment both[] = {{sick.data(), 0, 20}, {well.data(), 20, 20}};
    const KdaSegment single{alone.data(), 20, 20};
    Floats out(p.q.size()), want(p.q.size());
    KdaForward(m.context, p.shape, both, p.Inputs(), out.data());
    KdaForward(m.context, p.shape, {&single, 1}, p.Inputs(), want.data());
    EXPECT_TRUE(std::all_of(out.begin(), out.begin() + 20 * 16, [](float x) { return std::isnan(x); }));
    EXPECT_TRUE(std::memcmp(out.data() + 20 * 16, want.data() + 20 * 16, 20 * 16 * sizeof(float)) == 0);
  }
}

// What comes after it does see it: a NaN in a key is in S from its token on. The other head must not.
TEST_P(KdaOnEveryIsa, ANanStaysInItsHeadAndAfterItsRow) {
  for (const MatMulMode mode : {MatMulMode::kF32, MatMulMode::kBf16}) {
    const Problem well({2, 32, true, -5}, 40, 4);
    Problem sick = well;
    sick.k[20 * 64 + 7] = std::nanf("");
    Machine m(GetParam(), mode);
    AlignedBuffer well_state = NewState(well.shape), sick_state = NewState(well.shape);
    const Floats want = RunPieces(m.context, well, {40}, well_state.data());
    const Floats got = RunPieces(m.context, sick, {40}, sick_state.data());
    for (int64_t i = 0; i < 40 * 64; ++i) {
      if (i % 64 < 32 && i / 64 >= 20) {
        EXPECT_TRUE(std::isnan(got[i])) << i;
      } else {
        EXPECT_EQ(got[i], want[i]) << i;
      }
    }
  }
}

// One token into an empty state: q = k direction, beta = 1/2 -> S = k v^T / 2.
TEST_P(KdaOnEveryIsa, StateIsKeyByValue) {
  Problem p({1, 16, true, -5}, 1, 1);
  for (int d = 0; d < 16; ++d) {
    p.k[d] = d == 0 ? 1e3f : 0;
    p.v[d] = static_cast<float>(d + 1);
  }
  p.beta[0] = 0;
  Machine m(GetParam());
  AlignedBuffer state = NewState(p.shape);
  RunPieces(m.context, p, {1}, state.data());
  const Floats s = Materialize(p.shape, state);
  for (int d = 0; d < 16; ++d) {
    for (int e = 0; e < 16; ++e) EXPECT_NEAR(s[d * 16 + e], d == 0 ? 0.5f * (e + 1) : 0, 16 * 0x1p-23);
  }
}

// S of one known token, then tokens that write nothing: what is left of S shows the decay.
Floats DecayOfOnes(Isa isa, KdaShape shape, int64_t rows, float z, const Floats& a) {
  Machine m(isa);
  const int dim = shape.head_dim;
  Problem first(shape, 1, 1), p(shape, rows, 1);
  for (Problem* x : {&first, &p}) {
    std::fill(x->dt_bias.begin(), x->dt_bias.end(), 0.0f);
    std::fill(x->k.begin(), x->k.end(), 1.0f);  // after the norm 1 / sqrt(dim)
    std::fill(x->v.begin(), x->v.end(), std::sqrt(static_cast<float>(dim)));
    std::fill(x->z.begin(), x->z.end(), z);
    std::fill(x->beta.begin(), x->beta.end(), x == &p ? -200.0f : 200.0f);
    x->a = a;
  }
  AlignedBuffer state = NewState(shape);
  RunPieces(m.context, first, {1}, state.data());
  RunPieces(m.context, p, {rows}, state.data());
  return Materialize(shape, state);
}

TEST_P(KdaOnEveryIsa, GateIsPerHeadAndBounded) {
  // lb sigmoid(exp(A_log) z) with A_log = 0 and ln 2, z = 1.
  const Floats s = DecayOfOnes(GetParam(), {2, 16, true, -5}, 1, 1, {1, 2});
  for (int i = 0; i < 256; ++i) {
    EXPECT_NEAR(s[i], std::exp(-3.65529), 2e-7);
    EXPECT_NEAR(s[256 + i], std::exp(-4.40399), 2e-7);
  }
  // Not max(-exp(A) softplus(z), lb): -0.0024757 at -6, -5 at 6.
  EXPECT_NEAR(std::log(DecayOfOnes(GetParam(), {1, 16, true, -5}, 1, -6, {1})[0]), -0.0123631, 1e-6);
  EXPECT_NEAR(std::log(DecayOfOnes(GetParam(), {1, 16, true, -5}, 1, 6, {1})[0]), -4.987637, 5e-6);
  EXPECT_NEAR(std::log(DecayOfOnes(GetParam(), {1, 16, false, 0}, 1, -6, {1})[0]), -0.0024757, 1e-6);
}

TEST_P(KdaOnEveryIsa, SlowDecayIsNotLost) {
  const double g = std::log(0.99992);
  const float z = static_cast<float>(std::log(g / -5 / (1 - g / -5)));
  const Floats s = DecayOfOnes(GetParam(), {1, 16, true, -5}, 4096, z, {1});
  EXPECT_NEAR(s[0], 0.7206, 5e-5);
  // And much closer than 4096 roundings of alpha, 2^-25 each, would allow: z itself is a float32.
  const double exact_g = -5 / (1 + std::exp(-double{z}));
  EXPECT_NEAR(s[0], std::exp(4096 * exact_g), 0.72 * 1e-5);
}

TEST_P(KdaOnEveryIsa, ExtremeGatesGiveNoNan) {
  for (const bool bounded : {true, false}) {
    for (const float z : {-200.0f, 200.0f, -1e30f, 1e30f, 30.0f}) {
      Machine m(GetParam(), MatMulMode::kBf16);
      Problem p({1, 16, bounded, -5}, 50, 1);
      for (size_t i = 0; i < p.z.size(); ++i) p.z[i] = i % 3 == 0 ? z : p.z[i];
      for (size_t i = 0; i < p.beta.size(); ++i) p.beta[i] = i % 2 == 0 ? 200.0f : -200.0f;
      AlignedBuffer state = NewState(p.shape);
      const Floats out = RunPieces(m.context, p, {p.rows}, state.data());
      for (const float x : out) ASSERT_TRUE(std::isfinite(x)) << z;
      m.context.matmul = MatMulMode::kF32;
      AlignedBuffer again = NewState(p.shape);
      const Floats exact = RunPieces(m.context, p, {p.rows}, again.data());
      EXPECT_LT(CompareWithReference(p, exact, Materialize(p.shape, again)).out, 2 * Tolerance(16)) << z;
    }
  }
  // exp(g) = 0 forgets everything at once; sigmoid(-200) writes nothing.
  EXPECT_EQ(DecayOfOnes(GetParam(), {1, 16, false, 0}, 1, 200, {1})[3], 0.0f);
}

// Keys nearly parallel, beta near 1, alpha near 1: the substitution's matrix has a norm near 16 in every tile.
TEST_P(KdaOnEveryIsa, NearParallelKeysOver4096Tokens) {
  for (const int dim : {32, 128}) {
    Problem p({1, dim, true, -5}, 4096, 9);
    Rng rng(2);
    for (int64_t t = 0; t < p.rows; ++t) {
      for (int d = 0; d < dim; ++d) {
        p.k[t * dim + d] = 1 + 0.02f * static_cast<float>(rng.Normal());
        p.z[t * dim + d] = -9 + static_cast<float>(rng.Normal());
      }
      p.beta[t] = 6;
    }
    std::fill(p.dt_bias.begin(), p.dt_bias.end(), 0.0f);
    p.a = {1};
    Machine m(GetParam());
    AlignedBuffer state = NewState(p.shape);
    const Floats out = RunPieces(m.context, p, {100, 1, 33}, state.data());
    const Errors e = CompareWithReference(p, out, Materialize(p.shape, state));
    EXPECT_LT(e.out, 1e-5) << dim;
    EXPECT_LT(e.state, 1e-5) << dim;
    for (const MatMulMode mode : {MatMulMode::kF32, MatMulMode::kBf16}) {
      m.context.matmul = mode;
      AlignedBuffer chunked = NewState(p.shape), stepped = NewState(p.shape);
      const Floats chunks = RunPieces(m.context, p, {p.rows}, chunked.data());
      EXPECT_TRUE(SameBits(chunks, RunPieces(m.context, p, {1}, stepped.data()))) << dim;
      EXPECT_TRUE(SameBits(Materialize(p.shape, chunked), Materialize(p.shape, stepped))) << dim;
      if (!RoundsToInt16(GetParam(), mode, dim)) continue;
      const Errors rounded = CompareWithReference(p, chunks, Materialize(p.shape, chunked));
      EXPECT_LT(rounded.out, kInt16Tolerance) << dim;
      EXPECT_LT(rounded.state, kInt16Tolerance) << dim;
    }
  }
}

}  // namespace
}  // namespace kestrel
