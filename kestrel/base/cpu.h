// Which instruction sets this CPU has. A kernel family keeps one table of functions per Isa and takes the Isa from
// its Context, so that a test can run every path the machine can execute.
#pragma once

#include <string>
#include <vector>

namespace kestrel {

enum class Isa { kPortable, kNeon, kAvx2, kAvx512, kAvx512Bf16 };

const char* Name(Isa isa);
// All the CPU can run, best last; kPortable is always first.
std::vector<Isa> AvailableIsas();
Isa BestIsa();
std::string CpuModelName();
int PhysicalCores();  // threads to use by default

}  // namespace kestrel
