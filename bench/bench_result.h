#pragma once
#include <string>
namespace kestrel { struct BenchResult { std::string name; double value = 0; std::string unit; double roof = 0; double ratio = 0; }; }
