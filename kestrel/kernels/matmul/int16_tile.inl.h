// MXFP4 times int16 activations (int16_rows.h), written once over a class I of kLanes outputs. Included by tile_ISA.cpp
// inside its own namespace, after KESTREL_TARGET and I are defined.
// I has: Codes, Pair (two int16 weights of each output), Sum, Float; LoadCodes, FromCodes<j> (the pair 2j, 2j + 1 of
// eight), LoadPair, StorePair, Dot(pair, x pair*, sum), AddScaled(sum, x scale, weight scales, total).
//
// total += (float(sum) * x scale) * weight scale, the last step fused: the sum is exact and the scales are powers of
// two, so each group of 32 rounds once, to the same bits on every instruction set.

template <int R>
struct RowsInt16 {
  const uint32_t* row[R];
  const float* scale[R];
  KESTREL_INLINE explicit RowsInt16(const TileArgs& a) {
    KESTREL_UNROLL for (int r = 0; r < R; ++r) {
      row[r] = static_cast<const uint32_t*>(a.x[r]);
      scale[r] = a.x_scale[r];
    }
  }
  KESTREL_INLINE const uint32_t* Pair(int r, int64_t group, int i) const { return row[r] + 16 * group + i; }
  KESTREL_INLINE float Scale(int r, int64_t group) const { return scale[r][group]; }
};

template <int R>
struct PanelInt16 {
  const uint32_t* panel;
  KESTREL_INLINE explicit PanelInt16(const TileArgs& a) : panel(static_cast<const uint32_t*>(a.panel)) {}
  KESTREL_INLINE const uint32_t* Pair(int r, int64_t group, int i) const {
    return panel + (kInt16GroupWords * group + i) * R + r;
  }
  KESTREL_INLINE float Scale(int r, int64_t group) const { return std::bit_cast<float>(*Pair(r, group, 16)); }
};

// Where weights come from: the codes of the block, or pairs that DecodeBlock left.
template <int kSide>
struct CodedWeights {
  const std::byte* block;
  KESTREL_INLINE explicit CodedWeights(const TileArgs& a) : block(a.block) {}
  KESTREL_INLINE void Line(int64_t group, int line, int first, I::Pair (&pair)[kSide][4]) const {
    const std::byte* p = block + Mxfp4CodesAt(group) + line * kWordLine + 4 * first;
    KESTREL_UNROLL for (int i = 0; i < kSide * I::kLanes * 4; i += 64) KESTREL_PREFETCH(p + kPrefetchBytes + i);
    KESTREL_UNROLL for (int s = 0; s < kSide; ++s) {
      const I::Codes codes = I::LoadCodes(p + s * I::kLanes * 4);
      pair[s][0] = I::template FromCodes<0>(codes);
      pair[s][1] = I::template FromCodes<1>(codes);
      pair[s][2] = I::template FromCodes<2>(codes);
      pair[s][3] = I::template FromCodes<3>(codes);
    }
  }
};

template <int kSide>
struct DecodedWeights {
  const uint32_t* decoded;
  KESTREL_INLINE explicit DecodedWeights(const TileArgs& a) : decoded(a.decoded - a.k_begin / 2 * kPackBlock) {}
  KESTREL_INLINE void Line(int64_t group, int line, int first, I::Pair (&pair)[kSide][4]) const {
    KESTREL_UNROLL for (int s = 0; s < kSide; ++s) {
      KESTREL_UNROLL for (int j = 0; j < 4; ++j) {
        pair[s][j] = I::LoadPair(decoded + (16 * group + 4 * line + j) * kPackBlock + first + s * I::kLanes);
      }
    }
  }
};

template <class W, class X, int R, int kSide>
KESTREL_INLINE void Int16Line(const W& w, const X& x, int64_t group, int line, int first, I::Sum (&sum)[kSide][R]) {
  I::Pair pair[kSide][4];
  w.Line(group, line, first, pair);
  KESTREL_UNROLL for (int j = 0; j < 4; ++j) {
    KESTREL_UNROLL for (int r = 0; r < R; ++r) {
      KESTREL_UNROLL for (int s = 0; s < kSide; ++s) I::Dot(pair[s][j], x.Pair(r, group, 4 * line + j), sum[s][r]);
    }
  }
}

template <class W, class X, int R, int kSide>
KESTREL_INLINE void Int16Group(const std::byte* block, const W& w, const X& x, int64_t group, int first,
                               I::Float (&total)[kSide][R]) {
  I::Sum sum[kSide][R];
  KESTREL_UNROLL for (int s = 0; s < kSide; ++s) { KESTREL_UNROLL for (int r = 0; r < R; ++r) sum[s][r] = I::Zero(); }
  if constexpr (R <= 2) {
    KESTREL_UNROLL for (int line = 0; line < 4; ++line) Int16Line(w, x, group, line, first, sum);
  } else {
    for (int line = 0; line < 4; ++line) Int16Line(w, x, group, line, first, sum);
  }
  KESTREL_UNROLL for (int s = 0; s < kSide; ++s) {
    const I::Float scale = I::Scales(block + Mxfp4ScalesAt(group) + first + s * I::kLanes);
    KESTREL_UNROLL for (int r = 0; r < R; ++r) {
      total[s][r] = I::AddScaled(sum[s][r], x.Scale(r, group), scale, total[s][r]);
    }
  }
}

// The group sums are in registers; the totals are too for few rows, else in L1: they are touched once in 32 k.
template <class W, class X, int R, int kSide>
KESTREL_TARGET void Int16Tile(const TileArgs& a) {
  const X x(a);
  const W w(a);
  for (int first = 0; first < kPackBlock; first += kSide * I::kLanes) {
    I::Float total[kSide][R];
    KESTREL_UNROLL for (int s = 0; s < kSide; ++s) {
      KESTREL_UNROLL for (int r = 0; r < R; ++r) {
        total[s][r] = a.start ? I::Load(a.start + kPackBlock * r + first + s * I::kLanes) : I::FloatZero();
      }
    }
    for (int64_t group = a.k_begin / kMxfp4Group; group < a.k_end / kMxfp4Group; ++group) {
      if constexpr (R * kSide > kInt16TotalsInRegisters) asm volatile("" : : "r"(total) : "memory");
      Int16Group(a.block, w, x, group, first, total);
    }
    KESTREL_UNROLL for (int s = 0; s < kSide; ++s) {
      KESTREL_UNROLL for (int r = 0; r < R; ++r) {
        StoreLanes<I>(a.y[r] + first + s * I::kLanes, a.outputs - first - s * I::kLanes, total[s][r]);
      }
    }
  }
}

// Codes of the k in [k_begin, k_end) -> out [pairs][32].
KESTREL_TARGET void DecodeBlock(const std::byte* block, int64_t k_begin, int64_t k_end, uint32_t* out) {
  for (int64_t line = k_begin / 8; line < k_end / 8; ++line, out += 4 * kPackBlock) {
    const std::byte* p = block + Mxfp4CodesAt(line / 4) + line % 4 * kWordLine;
    KESTREL_UNROLL for (int i = 0; i < kPackBlock; i += I::kLanes) {
      const I::Codes codes = I::LoadCodes(p + 4 * i);
      I::StorePair(out + i, I::template FromCodes<0>(codes));
      I::StorePair(out + kPackBlock + i, I::template FromCodes<1>(codes));
      I::StorePair(out + 2 * kPackBlock + i, I::template FromCodes<2>(codes));
      I::StorePair(out + 3 * kPackBlock + i, I::template FromCodes<3>(codes));
    }
  }
}

template <int R>
void FillInt16Rows(TileTable& t) {
  constexpr auto fp4 = static_cast<int>(WeightType::kMxfp4);
  constexpr int kRowSide = R <= kInt16RowsSideRows ? 2 : 1;
  t.tile[fp4][static_cast<int>(XKind::kPanelInt16)][R - 1] =
      Int16Tile<DecodedWeights<kInt16Side>, PanelInt16<R>, R, kInt16Side>;
  if constexpr (R <= kDirectRows) {
    t.tile[fp4][static_cast<int>(XKind::kRowsInt16)][R - 1] =
        Int16Tile<CodedWeights<kRowSide>, RowsInt16<R>, R, kRowSide>;
  }
}
