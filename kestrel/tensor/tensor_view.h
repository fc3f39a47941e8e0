// A tensor somebody else owns: type, shape and bytes, contiguous, row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kestrel/tensor/dtype.h"

namespace kestrel {

using Shape = std::vector<int64_t>;

std::string ToString(const Shape& shape);  // "[2, 3]"
// Product of the extents; 1 for a scalar. The caller has checked that it does not overflow.
int64_t NumElements(const Shape& shape);

struct TensorView {
  Dtype dtype = Dtype::kF32;
  Shape shape;
  std::span<const std::byte> bytes;

  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes.data());
  }
  int64_t elements() const { return NumElements(shape); }
};

}  // namespace kestrel
