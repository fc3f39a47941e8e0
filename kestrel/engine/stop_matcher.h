// Holds back text that may be the beginning of a stop string; once one is complete, the text ends before it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kestrel {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Returns what may be shown now. After stopped() nothing more comes.
  std::string Push(std::string_view text);
  std::string Finish();  // what was held back
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace kestrel
