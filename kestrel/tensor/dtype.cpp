#include "kestrel/tensor/dtype.h"

namespace kestrel {
namespace {
struct Row {
  Dtype dtype;
  std::string_view name;
  size_t size;
};
constexpr Row kRows[] = {
    {Dtype::kF64, "F64", 8},   {Dtype::kF32, "F32", 4},        {Dtype::kF16, "F16", 2},
    {Dtype::kBF16, "BF16", 2}, {Dtype::kI64, "I64", 8},        {Dtype::kI32, "I32", 4},
    {Dtype::kI16, "I16", 2},   {Dtype::kI8, "I8", 1},          {Dtype::kU64, "U64", 8},
    {Dtype::kU32, "U32", 4},   {Dtype::kU16, "U16", 2},        {Dtype::kU8, "U8", 1},
    {Dtype::kBool, "BOOL", 1}, {Dtype::kF8E4M3, "F8_E4M3", 1}, {Dtype::kF8E5M2, "F8_E5M2", 1},
};
}  // namespace

size_t SizeOf(Dtype dtype) { return kRows[static_cast<size_t>(dtype)].size; }
std::string_view Name(Dtype dtype) { return kRows[static_cast<size_t>(dtype)].name; }

std::optional<Dtype> DtypeFromName(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace kestrel
