// bfloat16 weights times float32 (or widened bfloat16) activations, sums in float32, written once over a vector class V
// of 16 float32 lanes. Included by tile_ISA.cpp inside its own namespace, after KESTREL_TARGET and V are defined.
// V has: Zero, Load, Store, Broadcast(float*), BroadcastLow / BroadcastHigh(bf16 pair*), MulAdd(a, b, c) = a b + c,
// LoadWords, Low / High (the bf16 halves of words as float32).

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

KESTREL_INLINE V Start(const TileArgs& a, int row, int first) {
  return a.start ? V::Load(a.start + kPackBlock * row + first) : V::Zero();
}

// The first `outputs` lanes of v, an I, D or V.
template <class T, class U>
KESTREL_INLINE void StoreLanes(float* y, int64_t outputs, const U& v) {
  if (outputs >= T::kLanes) return T::Store(y, v);
  float t[T::kLanes];
  T::Store(t, v);
  for (int64_t i = 0; i < outputs; ++i) y[i] = t[i];
}

// kSide half blocks of 16 outputs side by side.
template <class X, int R, int kSide>
KESTREL_TARGET void Bf16WeightTile(const TileArgs& a) {
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
      const std::byte* w = a.block + pair * kWordLine + 64 * half;
      KESTREL_PREFETCH(w + kPrefetchBytes);
      if constexpr (kSide == 2) KESTREL_PREFETCH(w + kPrefetchBytes + 64);
      V even[kSide];
      V odd[kSide];
      KESTREL_UNROLL for (int s = 0; s < kSide; ++s) {
        even[s] = V::Low(V::LoadWords(w + 64 * s));
        odd[s] = V::High(V::LoadWords(w + 64 * s));
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
        StoreLanes<V>(a.y[r] + first, a.outputs - first, acc[s][r]);
      }
    }
  }
}

template <int R>
void FillFmaRows(TileTable& t) {
  constexpr int kSide = R <= kTwoHalvesRows ? 2 : 1;
  TileFn(&kinds)[kXKinds][kMaxTileRows] = t.tile[static_cast<int>(WeightType::kBf16)];
  kinds[static_cast<int>(XKind::kPanelF32)][R - 1] = Bf16WeightTile<PanelF32<R>, R, kSide>;
  if constexpr (R <= kDirectRows) {
    kinds[static_cast<int>(XKind::kRowsF32)][R - 1] = Bf16WeightTile<RowsF32<R>, R, kSide>;
    kinds[static_cast<int>(XKind::kRowsBf16)][R - 1] = Bf16WeightTile<RowsBf16<R>, R, kSide>;
  }
}
