#include "kestrel/tensor/tensor_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kestrel {

std::string ToString(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

int64_t NumElements(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

}  // namespace kestrel
