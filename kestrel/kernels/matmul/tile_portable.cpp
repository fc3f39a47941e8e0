// Tiles in plain vector C++ (GCC and Clang vector types): any CPU, four SSE2 or NEON registers to a vector.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kestrel/kernels/matmul/matmul.h"
#include "kestrel/kernels/matmul/tile.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // 64-byte vectors never cross a call: everything here is inlined

#define KESTREL_TARGET
#define KESTREL_INLINE __attribute__((always_inline)) inline
#define KESTREL_UNROLL _Pragma("GCC unroll 16")
#define KESTREL_PREFETCH(p) __builtin_prefetch(p)

namespace kestrel::matmul {
namespace {

constexpr int64_t kPrefetchBytes = 4096;
constexpr int kTwoHalvesRows = 1;  // 16 registers of 4 lanes: one half block of one row is 4
constexpr int kInt16Side = 1, kInt16RowsSideRows = 0, kInt16TotalsInRegisters = 3;
constexpr int kExactTwoSidesRows = 0;

struct V {
  static constexpr int kLanes = 16;
  using Floats = float __attribute__((vector_size(64)));
  using Words = uint32_t __attribute__((vector_size(64)));
  Floats v;

  KESTREL_INLINE static V Zero() { return {Floats{}}; }
  KESTREL_INLINE static V Load(const float* p) {
    V r;
    std::memcpy(&r.v, p, 64);
    return r;
  }
  KESTREL_INLINE static void Store(float* p, V a) { std::memcpy(p, &a.v, 64); }
  KESTREL_INLINE static V Splat(float x) { return {x - Floats{}}; }
  KESTREL_INLINE static V Broadcast(const float* p) { return Splat(*p); }
  KESTREL_INLINE static V BroadcastLow(const uint32_t* p) { return Splat(std::bit_cast<float>(*p << 16)); }
  KESTREL_INLINE static V BroadcastHigh(const uint32_t* p) { return Splat(std::bit_cast<float>(*p & 0xffff0000u)); }
  KESTREL_INLINE static V MulAdd(V a, V b, V c) { return {a.v * b.v + c.v}; }
  KESTREL_INLINE static Words LoadWords(const std::byte* p) {
    Words w;
    std::memcpy(&w, p, 64);
    return w;
  }
  KESTREL_INLINE static V Low(Words w) { return {reinterpret_cast<Floats>(w << 16)}; }
  KESTREL_INLINE static V High(Words w) { return {reinterpret_cast<Floats>(w & 0xffff0000u)}; }
};

using Float8 = float __attribute__((vector_size(32)));
using Int8 = int32_t __attribute__((vector_size(32)));
using Word8 = uint32_t __attribute__((vector_size(32)));
using Double8 = double __attribute__((vector_size(64)));

template <class T>
KESTREL_INLINE T LoadAs(const void* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The code's three lower bits as exponent and first mantissa bit of a float32 are its value times 2^-126.
KESTREL_INLINE Float8 E2m1TimesTwo(Word8 code) {
  return reinterpret_cast<Float8>((code & 7u) << 22 | (code & 8u) << 28) * 0x1p127f;
}

// The products are integers and so are their sums below 2^24: float32 arithmetic is exact, and SSE2 has it.
struct I {
  static constexpr int kLanes = 8;
  struct Pair {
    Float8 even, odd;
  };
  using Codes = Word8;
  using Sum = Float8;
  using Float = Float8;

  KESTREL_INLINE static Sum Zero() { return Float8{}; }
  KESTREL_INLINE static Float FloatZero() { return Float8{}; }
  KESTREL_INLINE static Float Load(const float* p) { return LoadAs<Float8>(p); }
  KESTREL_INLINE static void Store(float* p, Float v) { std::memcpy(p, &v, sizeof v); }
  KESTREL_INLINE static Codes LoadCodes(const std::byte* p) { return LoadAs<Word8>(p); }
  KESTREL_INLINE static Pair LoadPair(const uint32_t* p) {
    const Int8 both = LoadAs<Int8>(p);
    return {__builtin_convertvector(both << 16 >> 16, Float8), __builtin_convertvector(both >> 16, Float8)};
  }
  KESTREL_INLINE static void StorePair(uint32_t* p, Pair v) {
    const Int8 both = (__builtin_convertvector(v.even, Int8) & 0xffff) | __builtin_convertvector(v.odd, Int8) << 16;
    std::memcpy(p, &both, sizeof both);
  }
  template <int kPair>
  KESTREL_INLINE static Pair FromCodes(Codes codes) {
    return {E2m1TimesTwo(codes >> 4 * kPair), E2m1TimesTwo(codes >> (16 + 4 * kPair))};
  }
  KESTREL_INLINE static void Dot(Pair w, const uint32_t* x, Sum& sum) {
    sum += w.even * static_cast<float>(static_cast<int16_t>(*x));
    sum += w.odd * static_cast<float>(static_cast<int16_t>(*x >> 16));
  }
  KESTREL_INLINE static Float Scales(const std::byte* p) {
    Float r;
    for (int i = 0; i < 8; ++i) r[i] = E8m0ToFloat(static_cast<uint8_t>(p[i]));
    return r;
  }
  KESTREL_INLINE static Float AddScaled(Sum sum, float x_scale, Float scale, Float total) {
    const Float8 scaled = sum * x_scale;
    for (int i = 0; i < 8; ++i) total[i] = std::fma(scaled[i], scale[i], total[i]);
    return total;
  }
};

struct D {
  static constexpr int kLanes = 8;
  Double8 v;

  KESTREL_INLINE static D Widen(Float8 x) { return {__builtin_convertvector(x, Double8)}; }
  KESTREL_INLINE static D Zero() { return {Double8{}}; }
  KESTREL_INLINE static D Load(const float* p) { return Widen(LoadAs<Float8>(p)); }
  KESTREL_INLINE static D Low(const std::byte* p) { return Widen(reinterpret_cast<Float8>(LoadAs<Word8>(p) << 16)); }
  KESTREL_INLINE static D High(const std::byte* p) {
    return Widen(reinterpret_cast<Float8>(LoadAs<Word8>(p) & 0xffff0000u));
  }
  KESTREL_INLINE static D E2m1(const std::byte* p, int shift) {
    return {Widen(E2m1TimesTwo(LoadAs<Word8>(p) >> shift)).v * .5};
  }
  KESTREL_INLINE static D Scales(const std::byte* p) { return Widen(I::Scales(p)); }
  KESTREL_INLINE static D Broadcast(const float* p) { return {static_cast<double>(*p) - Double8{}}; }
  KESTREL_INLINE static D Mul(D a, D b) { return {a.v * b.v}; }
  KESTREL_INLINE static D MulAdd(D a, D b, D c) { return {a.v * b.v + c.v}; }
  KESTREL_INLINE static void Store(float* p, D a) {
    const Float8 rounded = __builtin_convertvector(a.v, Float8);
    std::memcpy(p, &rounded, sizeof rounded);
  }
};

#include "kestrel/kernels/matmul/exact_tile.inl.h"
#include "kestrel/kernels/matmul/fma_tile.inl.h"
#include "kestrel/kernels/matmul/int16_tile.inl.h"
#include "kestrel/kernels/matmul/quantize.inl.h"
#include "kestrel/kernels/matmul/table.inl.h"

}  // namespace

const TileTable& PortableTiles() {
  static const TileTable table = MakeTable(std::make_integer_sequence<int, 3>());
  return table;
}

}  // namespace kestrel::matmul
