// Seconds on a steady clock.
#pragma once

#include <chrono>

namespace kestrel {
inline double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
}  // namespace kestrel
