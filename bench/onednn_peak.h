// The GEMM yardstick G: oneDNN's bfloat16 matmul, weights in the format it likes best, float32 result.
//
//   OneDnnMatMul g(128, 4096, 4096);
//   if (g.available()) flops = 2.0 * 128 * 4096 * 4096 / g.Seconds();
#pragma once

#include <cstdint>
#include <memory>

namespace kestrel::bench {

class OneDnnMatMul {
 public:
  // y [rows, outputs] = x [rows, inputs] W, on all cores (oneDNN's own threads).
  OneDnnMatMul(int64_t rows, int64_t inputs, int64_t outputs);
  ~OneDnnMatMul();
  OneDnnMatMul(const OneDnnMatMul&) = delete;
  OneDnnMatMul& operator=(const OneDnnMatMul&) = delete;

  bool available() const;  // false where this build found no oneDNN
  double Seconds();        // of one run; its threads are asleep again afterwards

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kestrel::bench
