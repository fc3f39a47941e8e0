// Element types as safetensors names them.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace kestrel {

enum class Dtype { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU64, kU32, kU16, kU8, kBool, kF8E4M3, kF8E5M2 };

size_t SizeOf(Dtype dtype);
std::string_view Name(Dtype dtype);                         // "F32", "BF16", ...
std::optional<Dtype> DtypeFromName(std::string_view name);  // nothing for an unknown name

}  // namespace kestrel
