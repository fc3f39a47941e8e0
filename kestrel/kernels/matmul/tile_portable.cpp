// Tiles in plain vector C++ (GCC and Clang vector types): any CPU, four SSE2 or NEON registers to a vector.
#include <cstring>
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

struct V {
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
  // The code's three lower bits as exponent and first mantissa bit of a float32 are its value times 2^-126.
  template <int kShift>
  KESTREL_INLINE static V E2m1(Words w) {
    const Words code = w >> kShift;
    return {reinterpret_cast<Floats>((code & 7u) << 22 | (code & 8u) << 28) * 0x1p126f};
  }
  KESTREL_INLINE static V Scales(const std::byte* p) {
    V r;
    for (int i = 0; i < 16; ++i) r.v[i] = E8m0ToFloat(static_cast<uint8_t>(p[i]));
    return r;
  }
};

#include "kestrel/kernels/matmul/fma_tile.inl.h"

}  // namespace

const TileTable& PortableTiles() {
  static const TileTable table = MakeTable(std::make_integer_sequence<int, 3>());
  return table;
}

}  // namespace kestrel::matmul
