#include "kestrel/engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace kestrel {

std::string StopMatcher::Push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    if (!stop.empty()) first = std::min(first, held_.find(stop));
  }
  if (first != std::string::npos) {
    stopped_ = true;
    std::string shown = held_.substr(0, first);
    held_.clear();
    return shown;
  }
  // Keep the longest tail that a stop string begins with.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(held_.size(), stop.size() - (stop.empty() ? 0 : 1)); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string StopMatcher::Finish() { return stopped_ ? std::string() : std::exchange(held_, {}); }

}  // namespace kestrel
