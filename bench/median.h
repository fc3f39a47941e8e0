// Median and quartiles of a few measurements.
#pragma once

#include <algorithm>
#include <vector>

namespace kestrel::bench {

inline double Quantile(std::vector<double> v, double q) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  const double at = q * static_cast<double>(v.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, v.size() - 1);
  return v[low] + (at - static_cast<double>(low)) * (v[high] - v[low]);
}
inline double Median(const std::vector<double>& v) { return Quantile(v, 0.5); }
// (third - first quartile) / median.
inline double Spread(const std::vector<double>& v) { return (Quantile(v, 0.75) - Quantile(v, 0.25)) / Median(v); }

}  // namespace kestrel::bench
