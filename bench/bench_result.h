// One line of a benchmark report: what was reached, against which roof of the same run.
#pragma once

#include <string>

namespace kestrel::bench {

struct BenchResult {
  std::string name;
  double value = 0;   // median
  std::string unit;   // "GB/s", "GFLOP/s"
  double roof = 0;    // the yardstick, same unit; 0 where it is absent
  double ratio = 0;   // value / roof; 0 where there is no roof
  double spread = 0;  // (third - first quartile) / median of the repetitions
};

}  // namespace kestrel::bench
