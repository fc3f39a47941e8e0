// Lists of checksums as sha256sum writes them, one "hash  name" a line. Here and not in a room, because this is the
// only part of the program that needs OpenSSL.
//
//   KESTREL_ASSIGN_OR_RETURN(const std::vector<Sha256Line> lines, ReadSha256List("SHA256SUMS"));
//   const std::vector<VerifyProblem> problems = CheckSha256(pool, "models/k3", lines, {});
#pragma once

#include <string>
#include <vector>

#include "kestrel/base/result.h"
#include "kestrel/base/thread_pool.h"
#include "kestrel/model/verify.h"

namespace kestrel {

struct Sha256Line {
  std::string hash;  // 64 lower-case hexadecimal digits
  std::string name;  // relative to the model folder
};

Result<std::vector<Sha256Line>> ReadSha256List(const std::string& path);

// One file a thread. Files that are missing, unreadable or of another hash are problems.
std::vector<VerifyProblem> CheckSha256(ThreadPool& pool, const std::string& folder,
                                       const std::vector<Sha256Line>& lines, const ByteProgress& progress);

}  // namespace kestrel
