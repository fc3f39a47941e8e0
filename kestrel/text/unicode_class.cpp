#include "kestrel/text/unicode_class.h"

#include <cstring>
#include <memory>

#include "kestrel/base/check.h"

namespace kestrel {
namespace {

struct Run {
  int length;
  uint8_t bits;
};
constexpr Run kRuns[] = {
#include "kestrel/text/unicode_runs.inc"
};

std::unique_ptr<uint8_t[]> Unpack() {
  constexpr int kCodePoints = 0x110000;
  auto table = std::make_unique<uint8_t[]>(kCodePoints);
  int at = 0;
  for (const Run& run : kRuns) {
    KESTREL_CHECK(run.length <= kCodePoints - at);
    std::memset(table.get() + at, run.bits, static_cast<size_t>(run.length));
    at += run.length;
  }
  KESTREL_CHECK(at == kCodePoints);
  return table;
}

}  // namespace

const uint8_t* UnicodeClasses() {
  static const std::unique_ptr<uint8_t[]> table = Unpack();
  return table.get();
}

}  // namespace kestrel
