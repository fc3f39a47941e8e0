// Is a model folder whole? Reads every byte (by read, not by mapping: a bad disk or a file cut short while we look is a
// message, not a signal), and checks headers, index, config, names, shapes, and that numbers are numbers.
//
//   KESTREL_ASSIGN_OR_RETURN(const VerifyReport report, Verify(pool, "models/k3", {}));
//   for (const VerifyProblem& p : report.problems) Print(p.where, p.what);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kestrel/base/result.h"
#include "kestrel/base/thread_pool.h"
#include "kestrel/model/run_parts.h"

namespace kestrel {

struct VerifyProblem {
  std::string where;       // tensor or file; empty where `what` names it
  std::string what;        // one line
  int64_t first_bad = -1;  // number of the first bad value in its tensor; -1 where the problem is not about values
  int64_t bad_values = 0;
};

struct VerifyReport {
  int64_t tensors = 0;
  uint64_t bytes = 0;  // of tensors, read
  std::vector<VerifyProblem> problems;
};

// An error only where there is no folder to look at; whatever is wrong inside it is a problem in the report.
Result<VerifyReport> Verify(ThreadPool& pool, const std::string& folder, const ByteProgress& progress);

}  // namespace kestrel
