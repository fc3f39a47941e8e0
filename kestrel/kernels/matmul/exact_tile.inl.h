// Products of float32 (weights widened exactly) summed in double, written once over a class D of 8 double lanes: a
// product of two float32 is exact in double, so the bits are the same on every instruction set. Included by
// tile_ISA.cpp inside its own namespace, after KESTREL_TARGET and D are defined.
// D has: Zero, Load(float*), Low / High(bf16 words*), E2m1(words*, shift), Scales(8 e8m0 bytes), Broadcast(float*),
// Mul, MulAdd, Store(float*, D) which rounds once.

struct ExactF32 {
  KESTREL_INLINE static D At(const std::byte* block, int64_t word, int i, int first) {
    return D::Load(reinterpret_cast<const float*>(block + (8 * word + i) * kWordLine) + first);
  }
};

struct ExactBf16 {
  KESTREL_INLINE static D At(const std::byte* block, int64_t word, int i, int first) {
    const std::byte* p = block + (4 * word + i / 2) * kWordLine + 4 * first;
    return i % 2 ? D::High(p) : D::Low(p);
  }
};

struct ExactMxfp4 {
  KESTREL_INLINE static D At(const std::byte* block, int64_t word, int i, int first) {
    const std::byte* p = block + Mxfp4CodesAt(word / 4) + word % 4 * kWordLine + 4 * first;
    const D scale = D::Scales(block + Mxfp4ScalesAt(word / 4) + first);
    return D::Mul(D::E2m1(p, i % 2 * 16 + i / 2 * 4), scale);
  }
};

template <int R>
struct ExactRows {
  const float* row[R];
  KESTREL_INLINE explicit ExactRows(const TileArgs& a) {
    for (int r = 0; r < R; ++r) row[r] = static_cast<const float*>(a.x[r]);
  }
  KESTREL_INLINE const float* At(int r, int64_t k) const { return row[r] + k; }
};

template <int R>
struct ExactPanel {
  const float* panel;
  KESTREL_INLINE explicit ExactPanel(const TileArgs& a) : panel(static_cast<const float*>(a.panel)) {}
  KESTREL_INLINE const float* At(int r, int64_t k) const { return panel + k * R + r; }
};

// All of k at once (a.start is not used): a sum leaves the registers only rounded.
template <class W, class X, int R, int kSide>
KESTREL_TARGET void ExactTile(const TileArgs& a) {
  const X x(a);
  for (int first = 0; first < kPackBlock; first += 8 * kSide) {
    D acc[kSide][R];
    KESTREL_UNROLL for (int s = 0; s < kSide; ++s) { KESTREL_UNROLL for (int r = 0; r < R; ++r) acc[s][r] = D::Zero(); }
    for (int64_t word = 0; word < a.cols / 8; ++word) {
      KESTREL_UNROLL for (int i = 0; i < 8; ++i) {
        D w[kSide];
        KESTREL_UNROLL for (int s = 0; s < kSide; ++s) w[s] = W::At(a.block, word, i, first + 8 * s);
        KESTREL_UNROLL for (int r = 0; r < R; ++r) {
          const D xk = D::Broadcast(x.At(r, 8 * word + i));
          KESTREL_UNROLL for (int s = 0; s < kSide; ++s) acc[s][r] = D::MulAdd(w[s], xk, acc[s][r]);
        }
      }
    }
    KESTREL_UNROLL for (int s = 0; s < kSide; ++s) {
      KESTREL_UNROLL for (int r = 0; r < R; ++r) {
        StoreLanes<D>(a.y[r] + first + 8 * s, a.outputs - first - 8 * s, acc[s][r]);
      }
    }
  }
}

template <class W, int R>
void FillExactType(TileTable& t, WeightType type) {
  constexpr int kSide = R <= kExactTwoSidesRows ? 2 : 1;
  TileFn(&kinds)[kXKinds][kMaxTileRows] = t.tile[static_cast<int>(type)];
  kinds[static_cast<int>(XKind::kPanelExact)][R - 1] = ExactTile<W, ExactPanel<R>, R, kSide>;
  if constexpr (R <= kDirectRows) {
    kinds[static_cast<int>(XKind::kRowsExact)][R - 1] = ExactTile<W, ExactRows<R>, R, kSide>;
  }
}

template <int R>
void FillExactRows(TileTable& t) {
  FillExactType<ExactF32, R>(t, WeightType::kF32);
  FillExactType<ExactBf16, R>(t, WeightType::kBf16);
  FillExactType<ExactMxfp4, R>(t, WeightType::kMxfp4);
}
