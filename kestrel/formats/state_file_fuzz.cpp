// libFuzzer: any bytes as a state file, as they are and with a checksum that fits, so that the checks behind it are
// reached. Whatever they are: no crash, an error of one line, sections inside the file.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kestrel/formats/state_file.h"

namespace {

void Parse(std::span<const std::byte> bytes) {
  const auto require = [](bool condition) {
    if (!condition) std::abort();
  };
  const auto file = kestrel::StateFile::Parse(bytes, "fuzz");
  if (!file) {
    const std::string& m = file.error().message;
    require(m.size() < 2000 && std::none_of(m.begin(), m.end(), [](unsigned char c) { return c < 0x20; }));
    return;
  }
  require(file->sections() * 16 <= bytes.size());
  for (const char* name : {"position", "kda", "a", ""}) {
    const auto section = file->Find(name);
    if (!section || section->empty()) continue;
    require(section->data() >= bytes.data() && section->data() + section->size() <= bytes.data() + bytes.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Parse(std::as_bytes(std::span(data, size)));
  if (size < 8) return 0;
  std::string sealed(reinterpret_cast<const char*>(data), size);
  const uint64_t digest = XXH64(sealed.data(), size - 8, 0);
  std::memcpy(sealed.data() + size - 8, &digest, 8);
  Parse(std::as_bytes(std::span(sealed.data(), size)));
  return 0;
}
