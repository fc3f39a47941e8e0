// The tile functions of instruction sets that multiply float32 (all but AVX512-BF16), written once over a vector class
// V of 16 float32 lanes. Included by tile_ISA.cpp inside its own namespace, after KESTREL_TARGET and V are defined.
// V has: Zero, Load, Store, Broadcast(float*), BroadcastLow / BroadcastHigh(bf16 pair*), MulAdd(a, b, c) = a b + c,
// LoadWords, Low / High (the bf16 halves of words as float32), E2m1<shift>(words), Scales(16 e8m0 bytes).

template <int R>
struct RowsF32 {
  const float* row[R];
  KESTREL_INLINE explicit RowsF32(const TileArgs& a) {
    for (int r = 0; r < R; ++r) row[r] = static_cast<const float*>(a.x[r]);
  }
  KESTREL_INLINE V Even(int r, int64_t pair) const { return V::Broadcast(row[r] + 2 * pair); }
  KESTREL_INLINE V Odd(int r, int64_t pair) const { return V::Broadcast(row[r] + 2 * pair + 1); }
};

template <int R>
struct RowsBf16 {
  const uint32_t* row[R];
  KESTREL_INLINE explicit RowsBf16(const TileArgs& a) {
    for (int r = 0; r < R; ++r) row[r] = static_cast<const uint32_t*>(a.x[r]);
  }
  KESTREL_INLINE V Even(int r, int64_t pair) const { return V::BroadcastLow(row[r] + pair); }
  KESTREL_INLINE V Odd(int r, int64_t pair) const { return V::BroadcastHigh(row[r] + pair); }
};

template <int R>
struct PanelF32 {
  const float* panel;
  KESTREL_INLINE explicit PanelF32(const TileArgs& a) : panel(static_cast<const float*>(a.panel)) {}
  KESTREL_INLINE V Even(int r, int64_t pair) const { return V::Broadcast(panel + 2 * pair * R + r); }
  KESTREL_INLINE V Odd(int r, int64_t pair) const { return V::Broadcast(panel + (2 * pair + 1) * R + r); }
};

struct WeightsF32 {
  static constexpr int64_t kPairBytes = 2 * kWordLine;
  KESTREL_INLINE static V Even(const std::byte* p) { return V::Load(reinterpret_cast<const float*>(p)); }
  KESTREL_INLINE static V Odd(const std::byte* p) { return V::Load(reinterpret_cast<const float*>(p + kWordLine)); }
};

struct WeightsBf16 {
  static constexpr int64_t kPairBytes = kWordLine;
  KESTREL_INLINE static V Even(const std::byte* p) { return V::Low(V::LoadWords(p)); }
  KESTREL_INLINE static V Odd(const std::byte* p) { return V::High(V::LoadWords(p)); }
};

KESTREL_INLINE V Start(const TileArgs& a, int row, int first) {
  return a.start ? V::Load(a.start + kPackBlock * row + first) : V::Zero();
}

KESTREL_INLINE void StoreOutputs(float* y, int64_t outputs, V v) {
  if (outputs >= 16) return V::Store(y, v);
  float t[16];
  V::Store(t, v);
  for (int64_t i = 0; i < outputs; ++i) y[i] = t[i];
}

// float32 and bfloat16 weights: kSide half blocks of 16 outputs side by side.
template <class W, class X, int R, int kSide>
KESTREL_TARGET void PlainTile(const TileArgs& a) {
  const X x(a);
  for (int half = 0; half < 2; half += kSide) {
    V acc[kSide][R];
    KESTREL_UNROLL for (int s = 0; s < kSide; ++s) {
      KESTREL_UNROLL for (int r = 0; r < R; ++r) {
        const int first = 16 * (half + s);
        acc[s][r] = Start(a, r, first);
      }
    }
    for (int64_t pair = a.k_begin / 2; pair < a.k_end / 2; ++pair) {
      const std::byte* w = a.block + pair * W::kPairBytes + 64 * half;
      KESTREL_PREFETCH(w + kPrefetchBytes);
      if constexpr (kSide == 2) KESTREL_PREFETCH(w + kPrefetchBytes + 64);
      V even[kSide];
      V odd[kSide];
      KESTREL_UNROLL for (int s = 0; s < kSide; ++s) {
        even[s] = W::Even(w + 64 * s);
        odd[s] = W::Odd(w + 64 * s);
      }
      KESTREL_UNROLL for (int r = 0; r < R; ++r) {
        const V xe = x.Even(r, pair);
        KESTREL_UNROLL for (int s = 0; s < kSide; ++s) acc[s][r] = V::MulAdd(even[s], xe, acc[s][r]);
        const V xo = x.Odd(r, pair);
        KESTREL_UNROLL for (int s = 0; s < kSide; ++s) acc[s][r] = V::MulAdd(odd[s], xo, acc[s][r]);
      }
    }
    KESTREL_UNROLL for (int s = 0; s < kSide; ++s) {
      KESTREL_UNROLL for (int r = 0; r < R; ++r) {
        const int first = 16 * (half + s);
        StoreOutputs(a.y[r] + first, a.outputs - first, acc[s][r]);
      }
    }
  }
}

template <int kShift, class X, int R>
KESTREL_INLINE void Mxfp4Pair(typename V::Words words, const X& x, int64_t pair, V (&sum)[R]) {
  const V even = V::template E2m1<kShift>(words);
  KESTREL_UNROLL for (int r = 0; r < R; ++r) sum[r] = V::MulAdd(even, x.Even(r, pair), sum[r]);
  const V odd = V::template E2m1<16 + kShift>(words);
  KESTREL_UNROLL for (int r = 0; r < R; ++r) sum[r] = V::MulAdd(odd, x.Odd(r, pair), sum[r]);
}

// MXFP4: the sum of a group of 32 k is scaled into the total by one multiply-add.
template <class X, int R>
KESTREL_TARGET void Mxfp4Tile(const TileArgs& a) {
  const X x(a);
  for (int half = 0; half < 2; ++half) {
    const int64_t outputs = a.outputs - 16 * half;
    V total[R];
    KESTREL_UNROLL for (int r = 0; r < R; ++r) { total[r] = Start(a, r, 16 * half); }
    for (int64_t group = a.k_begin / kMxfp4Group; group < a.k_end / kMxfp4Group; ++group) {
      V sum[R];
      KESTREL_UNROLL for (int r = 0; r < R; ++r) sum[r] = V::Zero();
      for (int64_t word = 4 * group; word < 4 * group + 4; ++word) {
        const std::byte* w = a.block + Mxfp4CodesAt(group) + (word - 4 * group) * kWordLine + 64 * half;
        KESTREL_PREFETCH(w + kPrefetchBytes);
        const typename V::Words words = V::LoadWords(w);
        Mxfp4Pair<0>(words, x, 4 * word, sum);
        Mxfp4Pair<4>(words, x, 4 * word + 1, sum);
        Mxfp4Pair<8>(words, x, 4 * word + 2, sum);
        Mxfp4Pair<12>(words, x, 4 * word + 3, sum);
      }
      const V scale = V::Scales(a.block + Mxfp4ScalesAt(group) + 16 * half);
      KESTREL_UNROLL for (int r = 0; r < R; ++r) total[r] = V::MulAdd(sum[r], scale, total[r]);
    }
    KESTREL_UNROLL for (int r = 0; r < R; ++r) StoreOutputs(a.y[r] + 16 * half, outputs, total[r]);
  }
}

template <int R>
void FillRows(TileTable& t) {
  constexpr int kSide = R <= kTwoHalvesRows ? 2 : 1;
  constexpr auto f32 = static_cast<int>(WeightType::kF32);
  constexpr auto b16 = static_cast<int>(WeightType::kBf16);
  constexpr auto fp4 = static_cast<int>(WeightType::kMxfp4);
  constexpr auto rows_f32 = static_cast<int>(XKind::kRowsF32);
  constexpr auto rows_bf16 = static_cast<int>(XKind::kRowsBf16);
  constexpr auto panel_f32 = static_cast<int>(XKind::kPanelF32);
  t.tile[f32][panel_f32][R - 1] = PlainTile<WeightsF32, PanelF32<R>, R, kSide>;
  t.tile[b16][panel_f32][R - 1] = PlainTile<WeightsBf16, PanelF32<R>, R, kSide>;
  t.tile[fp4][panel_f32][R - 1] = Mxfp4Tile<PanelF32<R>, R>;
  if constexpr (R <= kDirectRows) {
    t.tile[f32][rows_f32][R - 1] = PlainTile<WeightsF32, RowsF32<R>, R, kSide>;
    t.tile[b16][rows_f32][R - 1] = PlainTile<WeightsBf16, RowsF32<R>, R, kSide>;
    t.tile[b16][rows_bf16][R - 1] = PlainTile<WeightsBf16, RowsBf16<R>, R, kSide>;
    t.tile[fp4][rows_f32][R - 1] = Mxfp4Tile<RowsF32<R>, R>;
    t.tile[fp4][rows_bf16][R - 1] = Mxfp4Tile<RowsBf16<R>, R>;
  }
}

template <int... kIndex>
TileTable MakeTable(std::integer_sequence<int, kIndex...>) {
  TileTable t;
  t.max_rows = sizeof...(kIndex);
  (FillRows<kIndex + 1>(t), ...);
  return t;
}
