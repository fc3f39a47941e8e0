// MXFP4 times int16 activations for a few rows, by bytes: VPERMB turns 64 codes at a time into w + 12 (0 to 24,
// unsigned), VPDPBUSD multiplies them with the two bytes of x = 256 high + low, and the sums start at what the 12 adds
// too much:
//   sum w x = 256 sum (w + 12) high + sum (w + 12) low - 12 sum x        all in int32, exact
// The same integer as in int16_tile.inl.h, so the same bits, with 36 instead of 51 instructions for 16 outputs and 32
// k. Included by tile_avx512.cpp inside its own namespace.

#define KESTREL_VBMI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")))
#define KESTREL_VBMI_INLINE KESTREL_VBMI __attribute__((always_inline)) inline

// Of the read rate, on one thread and on two: both 0.88 and 0.85; the far one alone 0.80 and 0.82; the near one alone
// at 4096 0.81 and 0.80.
constexpr int64_t kFarBytes = 6144, kNearBytes = 2048;

// The eight k of a line of codes go to bytes as their nibbles stand: the low ones hold k = 0, 4, 1, 5, the high ones 2,
// 6, 3, 7 (packed_matrix.h).
KESTREL_VBMI void SplitRow(const int16_t* q, const float* scale, int64_t groups, SplitGroup* out) {
  const __m256i line = _mm256_set1_epi64x(0x0703060205010400);
  const __m256i order =
      _mm256_add_epi8(line, _mm256_setr_epi64x(0, 0x0808080808080808, 0x1010101010101010, 0x1818181818181818));
  for (int64_t g = 0; g < groups; ++g) {
    const __m512i x = _mm512_loadu_si512(q + g * kMxfp4Group);
    const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(x, _mm512_set1_epi16(128)), 8);
    const __m512i sum = _mm512_dpwssd_epi32(_mm512_setzero_si512(), x, _mm512_set1_epi16(1));
    SplitGroup& to = out[g];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.high),
                        _mm256_permutexvar_epi8(order, _mm512_cvtepi16_epi8(high)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.low), _mm256_permutexvar_epi8(order, _mm512_cvtepi16_epi8(x)));
    to.start = -12 * _mm512_reduce_add_epi32(sum);
    to.scale = scale[g];
  }
}

// sum += bytes w [16][4] times the quad x, in each lane. In assembly, since GCC 12 copies accumulators around the
// intrinsic.
KESTREL_VBMI_INLINE void DotBytes(__m512i w, const int8_t* x, __m512i& sum) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const int32_t*>(x)));
}

template <int R>
KESTREL_VBMI_INLINE void SplitHalfLine(const SplitGroup* const (&x)[R], __m512i w, int quad, __m512i (&high)[R],
                                       __m512i (&low)[R]) {
  KESTREL_UNROLL for (int r = 0; r < R; ++r) {
    DotBytes(w, x[r]->high + 4 * quad, high[r]);
    DotBytes(w, x[r]->low + 4 * quad, low[r]);
  }
}

template <int R>
KESTREL_VBMI_INLINE void SplitGroupSums(const std::byte* codes, const SplitGroup* const (&x)[R], __m512i (&high)[2][R],
                                        __m512i (&low)[2][R]) {
  const __m512i values =
      _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  KESTREL_UNROLL for (int s = 0; s < 2; ++s) {
    KESTREL_UNROLL for (int r = 0; r < R; ++r) {
      high[s][r] = _mm512_setzero_si512();
      low[s][r] = _mm512_set1_epi32(x[r]->start);
    }
  }
  KESTREL_UNROLL for (int line = 0; line < 4; ++line) {
    KESTREL_UNROLL for (int s = 0; s < 2; ++s) {
      const std::byte* p = codes + line * kWordLine + 64 * s;
      _mm_prefetch(reinterpret_cast<const char*>(p + kFarBytes), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(p + kNearBytes), _MM_HINT_T0);
      const __m512i both = I::LoadCodes(p);
      // VPERMB takes six index bits; the two above a nibble repeat the table.
      SplitHalfLine(x, _mm512_permutexvar_epi8(both, values), 2 * line, high[s], low[s]);
      SplitHalfLine(x, _mm512_permutexvar_epi8(_mm512_srli_epi16(both, 4), values), 2 * line + 1, high[s], low[s]);
    }
  }
}

// Both halves of the block side by side: 4 R sums and 2 R totals in registers.
template <int R>
KESTREL_VBMI void SplitTile(const TileArgs& a) {
  const SplitGroup* x[R];
  __m512 total[2][R];
  KESTREL_UNROLL for (int r = 0; r < R; ++r) {
    x[r] = static_cast<const SplitGroup*>(a.x[r]);
    total[0][r] = total[1][r] = _mm512_setzero_ps();
  }
  for (int64_t group = 0; group < a.cols / kMxfp4Group; ++group) {
    __m512i high[2][R], low[2][R];
    SplitGroupSums(a.block + Mxfp4CodesAt(group), x, high, low);
    KESTREL_UNROLL for (int s = 0; s < 2; ++s) {
      const __m512 scale = I::Scales(a.block + Mxfp4ScalesAt(group) + 16 * s);
      KESTREL_UNROLL for (int r = 0; r < R; ++r) {
        const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[s][r], 8), low[s][r]);
        total[s][r] = I::AddScaled(sum, x[r]->scale, scale, total[s][r]);
      }
    }
    KESTREL_UNROLL for (int r = 0; r < R; ++r) x[r] += 1;
  }
  KESTREL_UNROLL for (int s = 0; s < 2; ++s) {
    KESTREL_UNROLL for (int r = 0; r < R; ++r) StoreLanes<I>(a.y[r] + 16 * s, a.outputs - 16 * s, total[s][r]);
  }
}

template <int... kIndex>
void FillSplitRows(TileTable& t, std::integer_sequence<int, kIndex...>) {
  t.split = SplitRow;
  auto& tiles = t.tile[static_cast<int>(WeightType::kMxfp4)][static_cast<int>(XKind::kRowsInt16)];
  ((tiles[kIndex] = SplitTile<kIndex + 1>), ...);
}
