// KESTREL_CHECK(condition): a broken invariant of our own code ends the process with file and line.
// Never for user input: that is a Result.
#pragma once

namespace kestrel {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace kestrel

#define KESTREL_CHECK(condition) ((condition) ? (void)0 : ::kestrel::CheckFailed(__FILE__, __LINE__, #condition))
