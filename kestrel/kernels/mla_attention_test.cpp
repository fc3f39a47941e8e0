#include "kestrel/kernels/mla_attention.h"

#include <cmath>
#include <limits>

#include "kestrel/base/aligned.h"
#include "kestrel/base/float_types.h"
#include "kestrel/kernels/ref/mla_attention_ref.h"
#include "kestrel/kernels/test_support.h"

namespace kestrel {
namespace {

constexpr int64_t kPage = kMlaPageTokens;

// A sequence's latents in pages, every slot that is not written poisoned with NaN.
class Pages {
 public:
  Pages(const MlaShape& shape, const std::vector<float>& latents /*[keys, width]*/, bool half) : half_(half) {
    const int64_t width = shape.rank + shape.rope, keys = static_cast<int64_t>(latents.size()) / width;
    for (int64_t p = 0; p * kPage < keys; ++p) {
      buffers_.emplace_back(static_cast<size_t>(kPage * width * (half ? 2 : 4)));
      for (int64_t i = 0; i < kPage * width; ++i) {
        const size_t at = static_cast<size_t>(p * kPage * width + i);
        const float v = at < latents.size() ? latents[at] : std::numeric_limits<float>::quiet_NaN();
        if (half) {
          buffers_.back().as<bf16>()[i] = ToBf16(v);
        } else {
          buffers_.back().as<float>()[i] = v;
        }
      }
    }
    for (const AlignedBuffer& b : buffers_) pointers_.push_back(b.data());
  }
  MlaCache cache() const { return {pointers_.data(), half_}; }

 private:
  std::vector<AlignedBuffer> buffers_;
  std::vector<const void*> pointers_;
  bool half_;
};

void RoundAll(std::vector<float>& x) {
  for (float& v : x) v = ToFloat(ToBf16(v));
}

struct Problem {
  MlaShape shape;
  int64_t keys;
  std::vector<float> latents;   // [keys, rank + rope], exact in bfloat16
  std::vector<float> q_latent;  // [keys, heads, rank + rope]
  std::vector<float> q;         // [keys, heads, nope + rope]
  std::vector<float> kv_b;      // [heads * (nope + v_dim), rank], exact in bfloat16

  Problem(const MlaShape& s, int64_t n, uint64_t seed) : shape(s), keys(n) {
    Rng rng(seed);
    const int64_t width = s.rank + s.rope;
    latents = RandomVector(rng, n * width);
    q_latent = RandomVector(rng, n * s.heads * width);
    q = RandomVector(rng, n * s.heads * (s.nope + s.rope));
    kv_b = RandomVector(rng, s.heads * (s.nope + s.v_dim) * s.rank, 1 / std::sqrt(s.rank));
    RoundAll(latents);
    RoundAll(kv_b);
    shape.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.nope + s.rope)));
  }
};

AttentionRefResult DecodeRef(const Problem& p, int64_t row, int64_t head) {
  const size_t width = static_cast<size_t>(p.shape.rank) + static_cast<size_t>(p.shape.rope),
               rank = static_cast<size_t>(p.shape.rank);
  const size_t keys = static_cast<size_t>(row + 1),
               at = (static_cast<size_t>(row) * static_cast<size_t>(p.shape.heads) + static_cast<size_t>(head)) * width;
  std::vector<double> q(p.q_latent.begin() + static_cast<int64_t>(at),
                        p.q_latent.begin() + static_cast<int64_t>(at + width));
  std::vector<double> key(p.latents.begin(), p.latents.begin() + static_cast<int64_t>(keys * width)), value;
  for (size_t k = 0; k < keys; ++k) {
    for (size_t c = 0; c < rank; ++c) value.push_back(key[k * width + c]);
  }
  return AttentionRef(q, key, value, keys, rank, p.shape.scale);
}

// A head's keys [keys, nope + rope] and values [keys, v_dim].
struct Expanded {
  std::vector<double> key, value;
};

Expanded ExpandRef(const Problem& p, int64_t head) {
  const MlaShape& s = p.shape;
  Expanded e;
  for (int64_t k = 0; k < p.keys; ++k) {
    const float* latent = p.latents.data() + k * (s.rank + s.rope);
    const auto expand = [&](int64_t r) {
      const float* w = p.kv_b.data() + (head * (s.nope + s.v_dim) + r) * s.rank;
      double sum = 0;
      for (int64_t i = 0; i < s.rank; ++i) sum += double{w[i]} * latent[i];
      return sum;
    };
    for (int64_t c = 0; c < s.nope; ++c) e.key.push_back(expand(c));
    for (int64_t c = 0; c < s.rope; ++c) e.key.push_back(latent[s.rank + c]);
    for (int64_t c = 0; c < s.v_dim; ++c) e.value.push_back(expand(s.nope + c));
  }
  return e;
}

AttentionRefResult PrefillRef(const Problem& p, const Expanded& e, int64_t row, int64_t head) {
  const MlaShape& s = p.shape;
  const int64_t width = s.nope + s.rope;
  const auto q = p.q.begin() + (row * s.heads + head) * width;
  return AttentionRef({q, q + width}, e.key, e.value, static_cast<size_t>(row + 1), static_cast<size_t>(s.v_dim),
                      s.scale);
}

// Rows from `begin` on as one call of `cuts` segments' worth of rows each (a cut list of row counts).
std::vector<float> Decode(Context& ctx, const Problem& p, const MlaCache& cache, int64_t begin,
                          const std::vector<int64_t>& cuts) {
  const int64_t width = p.shape.rank + p.shape.rope;
  std::vector<float> out;
  for (const int64_t rows : cuts) {
    std::vector<float> part(static_cast<size_t>(rows * p.shape.heads * p.shape.rank));
    const MlaSegment segment = {cache, 0, rows, begin};
    MlaDecode(ctx, p.shape, {&segment, 1}, p.q_latent.data() + begin * p.shape.heads * width, part.data());
    out.insert(out.end(), part.begin(), part.end());
    begin += rows;
  }
  return out;
}

std::vector<float> Prefill(Context& ctx, const Problem& p, const MlaCache& cache, const MlaUpProjection& up,
                           int64_t begin, const std::vector<int64_t>& cuts) {
  std::vector<float> out;
  for (const int64_t rows : cuts) {
    std::vector<float> part(static_cast<size_t>(rows * p.shape.heads * p.shape.v_dim));
    const MlaSegment segment = {cache, 0, rows, begin};
    MlaPrefill(ctx, p.shape, {&segment, 1}, p.q.data() + begin * p.shape.heads * (p.shape.nope + p.shape.rope), up,
               part.data());
    out.insert(out.end(), part.begin(), part.end());
    begin += rows;
  }
  return out;
}

// ||got - want|| against the size of the values. Queries, keys and values are of size 1 a channel, so a score is a sum
// of `width` products of size `scale`: rounding its operands to bfloat16 moves it by about 2^-9 sqrt(width) scale, and
// float32 sums by about 2^-24 sqrt(width) times that size; a moved score moves a weight by as much, relatively, and the
// weights' errors are independent. Values and weights are rounded once more. Factor 4 for the tail of 10^5 samples.
void ExpectClose(const float* got, const AttentionRefResult& want, int64_t width, float scale, MatMulMode mode) {
  const double root = std::sqrt(static_cast<double>(width)), spread = root * scale;
  const double bound = 4 * ((spread * root + 8) * kEpsF32 + (mode == MatMulMode::kBf16 ? (spread + 1) * kEpsBf16 : 0));
  double error = 0, norm = 0;
  for (size_t c = 0; c < want.out.size(); ++c) {
    error += (got[c] - want.out[c]) * (got[c] - want.out[c]);
    norm += want.out[c] * want.out[c];
  }
  const double size = std::max(std::sqrt(norm), want.weight_norm * std::sqrt(static_cast<double>(want.out.size())));
  ASSERT_LE(std::sqrt(error), bound * size);
}

const MlaShape kShapes[] = {
    {.heads = 4, .nope = 16, .rope = 8, .v_dim = 16, .rank = 32},
    {.heads = 1, .nope = 8, .rope = 0, .v_dim = 4, .rank = 8},
    {.heads = 50, .nope = 6, .rope = 2, .v_dim = 10, .rank = 20},
    {.heads = 3, .nope = 5, .rope = 3, .v_dim = 7, .rank = 13},
    {.heads = 2, .nope = 128, .rope = 64, .v_dim = 128, .rank = 512},
};

template <class F>
void ForEachCase(F&& body) {
  ForEachIsa([&](Isa isa) {
    for (const MatMulMode mode : {MatMulMode::kF32, MatMulMode::kBf16}) {
      for (const bool half : {false, true}) {
        SCOPED_TRACE(testing::Message() << (mode == MatMulMode::kF32 ? "f32" : "bf16") << " latents "
                                        << (half ? "bf16" : "f32"));
        body(isa, mode, half);
      }
    }
  });
}

TEST(MlaDecode, MatchesDouble) {
  ForEachCase([](Isa isa, MatMulMode mode, bool half) {
    for (const MlaShape& shape : kShapes) {
      TestContext t(isa, 2, mode);
      const Problem p(shape, 150, 13);
      const Pages pages(shape, p.latents, half);
      const auto out = Decode(t.ctx, p, pages.cache(), 0, {150});
      for (const int64_t row : {0, 1, 2, 62, 63, 64, 65, 127, 128, 149}) {
        for (int64_t h = 0; h < shape.heads; ++h) {
          const auto want = DecodeRef(p, row, h);
          ExpectClose(out.data() + (row * shape.heads + h) * shape.rank, want, shape.rank + shape.rope, p.shape.scale,
                      mode);
        }
      }
    }
  });
}

TEST(MlaPrefill, MatchesDouble) {
  ForEachCase([](Isa isa, MatMulMode mode, bool half) {
    for (const MlaShape& shape : kShapes) {
      TestContext t(isa, 2, mode);
      const Problem p(shape, 150, 14);
      const Pages pages(shape, p.latents, half);
      std::vector<bf16> kv_half;
      for (const float v : p.kv_b) kv_half.push_back(ToBf16(v));
      const auto out = Prefill(t.ctx, p, pages.cache(), {p.kv_b.data(), false}, 0, {150});
      std::vector<Expanded> expanded;
      for (int64_t h = 0; h < shape.heads; ++h) expanded.push_back(ExpandRef(p, h));
      EXPECT_TRUE(SameBits(out, Prefill(t.ctx, p, pages.cache(), {kv_half.data(), true}, 0, {150})));
      for (const int64_t row : {0, 1, 2, 47, 48, 63, 64, 65, 127, 128, 149}) {
        for (int64_t h = 0; h < shape.heads; ++h) {
          const auto want = PrefillRef(p, expanded[static_cast<size_t>(h)], row, h);
          ExpectClose(out.data() + (row * shape.heads + h) * shape.v_dim, want, shape.nope + shape.rope, p.shape.scale,
                      mode);
        }
      }
    }
  });
}

// The law: a row's bits do not depend on how the prompt is cut, on threads, or on who shares the call.
TEST(MlaPrefill, AnyChunkingAndThreadCountGivesTheSameBits) {
  ForEachCase([](Isa isa, MatMulMode mode, bool half) {
    const MlaShape shape = kShapes[0];
    const Problem p(shape, 210, 15);
    const Pages pages(shape, p.latents, half);
    const MlaUpProjection up = {p.kv_b.data(), false};
    TestContext one(isa, 1, mode), three(isa, 3, mode);
    const auto whole = Prefill(one.ctx, p, pages.cache(), up, 0, {210});
    EXPECT_TRUE(SameBits(whole, Prefill(three.ctx, p, pages.cache(), up, 0, {210})));
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>{64, 64, 82}, {1, 1, 1, 207}, {63, 2, 145}, {100, 0, 110}, {17, 48, 49, 96}}) {
      EXPECT_TRUE(SameBits(whole, Prefill(three.ctx, p, pages.cache(), up, 0, cuts)));
    }
    std::vector<int64_t> single(210, 1);
    EXPECT_TRUE(SameBits(whole, Prefill(one.ctx, p, pages.cache(), up, 0, single)));
  });
}

TEST(MlaDecode, AnyBatchAndThreadCountGivesTheSameBits) {
  ForEachCase([](Isa isa, MatMulMode mode, bool half) {
    for (const MlaShape& shape : {kShapes[0], kShapes[2]}) {
      const Problem p(shape, 140, 16);
      const Pages pages(shape, p.latents, half);
      TestContext one(isa, 1, mode), five(isa, 5, mode);
      const auto whole = Decode(one.ctx, p, pages.cache(), 0, {140});
      EXPECT_TRUE(SameBits(whole, Decode(five.ctx, p, pages.cache(), 0, {140})));
      EXPECT_TRUE(SameBits(whole, Decode(five.ctx, p, pages.cache(), 0, std::vector<int64_t>(140, 1))));
      EXPECT_TRUE(SameBits(whole, Decode(one.ctx, p, pages.cache(), 0, {3, 61, 70, 6})));
    }
  });
}

// Past 2048 keys a row is attended in chunks, which are tasks of their own where threads would be idle: one thread,
// many threads and a batch large enough not to be split must agree bit for bit.
TEST(MlaDecode, LongContextMatchesDoubleAndIsOneResult) {
  ForEachCase([](Isa isa, MatMulMode mode, bool half) {
    for (const MlaShape& shape : {kShapes[0], kShapes[2]}) {
      const Problem p(shape, 5000, 22);
      const Pages pages(shape, p.latents, half);
      TestContext one(isa, 1, mode), five(isa, 5, mode);
      for (const int64_t row : {2047, 2048, 4096, 4999}) {
        const auto out = Decode(five.ctx, p, pages.cache(), row, {1});
        EXPECT_TRUE(SameBits(out, Decode(one.ctx, p, pages.cache(), row, {1})));
        for (int64_t h = 0; h < shape.heads; h += 3) {
          const auto want = DecodeRef(p, row, h);
          ExpectClose(out.data() + h * shape.rank, want, shape.rank + shape.rope, p.shape.scale, mode);
        }
      }
      const auto batch = Decode(five.ctx, p, pages.cache(), 2040, {24});
      EXPECT_TRUE(SameBits(batch, Decode(five.ctx, p, pages.cache(), 2040, std::vector<int64_t>(24, 1))));
    }
  });
}

// Several sequences in one call, rows in another order than the segments, against each one alone.
TEST(MlaAttention, SequencesDoNotSeeEachOther) {
  ForEachCase([](Isa isa, MatMulMode mode, bool half) {
    const MlaShape shape = kShapes[0];
    const Problem a(shape, 100, 17), b(shape, 70, 18);
    const Pages pa(shape, a.latents, half), pb(shape, b.latents, half);
    TestContext t(isa, 3, mode);
    const int64_t H = shape.heads, dw = shape.rank + shape.rope, pw = shape.nope + shape.rope;
    // Rows 0..1: sequence b at positions 68, 69; rows 2..11: sequence a at 90 .. 99.
    const MlaSegment segments[] = {{pa.cache(), 2, 10, 90}, {pb.cache(), 0, 2, 68}};
    const auto join = [&](const std::vector<float>& qa, const std::vector<float>& qb, int64_t w) {
      std::vector<float> q(qb.begin() + 68 * H * w, qb.begin() + 70 * H * w);
      q.insert(q.end(), qa.begin() + 90 * H * w, qa.begin() + 100 * H * w);
      return q;
    };
    const auto both = [](std::vector<float> x, const std::vector<float>& y) {
      x.insert(x.end(), y.begin(), y.end());
      return x;
    };
    std::vector<float> out(static_cast<size_t>(12 * H * shape.rank));
    MlaDecode(t.ctx, a.shape, segments, join(a.q_latent, b.q_latent, dw).data(), out.data());
    EXPECT_TRUE(SameBits(out, both(Decode(t.ctx, b, pb.cache(), 68, {2}), Decode(t.ctx, a, pa.cache(), 90, {10}))));

    out.assign(static_cast<size_t>(12 * H * shape.v_dim), 0.0f);
    const MlaUpProjection up = {a.kv_b.data(), false};
    MlaPrefill(t.ctx, a.shape, segments, join(a.q, b.q, pw).data(), up, out.data());
    EXPECT_TRUE(
        SameBits(out, both(Prefill(t.ctx, b, pb.cache(), up, 68, {2}), Prefill(t.ctx, a, pa.cache(), up, 90, {10}))));
  });
}

// M01: attention reaches back. M04: the rope channels count in the score.
TEST(MlaAttention, EarlierTokensAndRopeChannelsMatter) {
  ForEachCase([](Isa isa, MatMulMode mode, bool half) {
    const MlaShape shape = kShapes[0];
    Problem p(shape, 3, 19);
    const MlaUpProjection up = {p.kv_b.data(), false};
    TestContext t(isa, 1, mode);
    const auto run = [&] {
      const Pages pages(shape, p.latents, half);
      auto out = Prefill(t.ctx, p, pages.cache(), up, 2, {1});
      const auto decoded = Decode(t.ctx, p, pages.cache(), 2, {1});
      return std::pair(out, decoded);
    };
    const auto before = run();
    const float kept = p.latents[0];
    p.latents[0] += 1;
    const auto value_changed = run();
    p.latents[0] = kept;
    p.latents[static_cast<size_t>(shape.rank)] += 2;
    const auto rope_changed = run();
    EXPECT_NE(before.first, value_changed.first);
    EXPECT_NE(before.second, value_changed.second);
    EXPECT_NE(before.first, rope_changed.first);
    EXPECT_NE(before.second, rope_changed.second);
  });
}

// Scores far past exp's range, both ways, in later and earlier tiles.
TEST(MlaAttention, LargeScoresStayFinite) {
  ForEachCase([](Isa isa, MatMulMode mode, bool half) {
    const MlaShape shape = kShapes[0];
    Problem p(shape, 140, 20);
    for (float& v : p.q) v *= 1000;
    for (float& v : p.q_latent) v *= 1000;
    TestContext t(isa, 2, mode);
    const Pages pages(shape, p.latents, half);
    for (const float v : Prefill(t.ctx, p, pages.cache(), {p.kv_b.data(), false}, 0, {140}))
      ASSERT_TRUE(std::isfinite(v));
    for (const float v : Decode(t.ctx, p, pages.cache(), 0, {140})) ASSERT_TRUE(std::isfinite(v));
  });
}

// A NaN in a query reaches its own head and row, and no other.
TEST(MlaAttention, NanStaysInItsLane) {
  ForEachCase([](Isa isa, MatMulMode mode, bool half) {
    const MlaShape shape = kShapes[0];
    Problem p(shape, 70, 21);
    TestContext t(isa, 1, mode);
    const Pages pages(shape, p.latents, half);
    const auto clean = Decode(t.ctx, p, pages.cache(), 66, {3});
    const int64_t width = shape.rank + shape.rope;
    p.q_latent[static_cast<size_t>((67 * shape.heads + 1) * width)] = std::numeric_limits<float>::quiet_NaN();
    const auto out = Decode(t.ctx, p, pages.cache(), 66, {3});
    for (int64_t i = 0; i < 3 * shape.heads; ++i) {
      for (int64_t c = 0; c < shape.rank; ++c) {
        const size_t at = static_cast<size_t>(i * shape.rank + c);
        if (i == shape.heads + 1) {
          ASSERT_TRUE(std::isnan(out[at]));
        } else {
          ASSERT_EQ(out[at], clean[at]);
        }
      }
    }
  });
}

}  // namespace
}  // namespace kestrel
