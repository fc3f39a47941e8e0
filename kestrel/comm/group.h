// Members that compute one thing together. A group of one does nothing, so that no caller asks "if distributed".
//
//   std::unique_ptr<Group> group = MakeLocalGroup();
//   KESTREL_RETURN_IF_ERROR(group->AllReduceSum(gradients));
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "kestrel/base/result.h"

namespace kestrel {

class Group {
 public:
  virtual ~Group() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  // Every member's values become their sum, added in the order of ranks so that it has the same bits everywhere.
  virtual Status AllReduceSum(std::span<float> values) = 0;
  // out [size, mine.size()]: what each member gave, in the order of ranks.
  virtual Status AllGather(std::span<const std::byte> mine, std::span<std::byte> out) = 0;
  virtual Status Broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual Status Barrier() = 0;
};

// The layers [begin, end) of member `rank` where `layers` are shared out: contiguous, disjoint, covering, sizes
// differing by at most one.
struct Span {
  int begin, end;
};
Span ShareOf(int layers, int size, int rank);

std::unique_ptr<Group> MakeLocalGroup();

}  // namespace kestrel
