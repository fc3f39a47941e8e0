// libFuzzer: any bytes as a safetensors file. Whatever they are: no crash, an error of one line, and what is accepted
// lies inside the file, end to end.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kestrel/formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kestrel;
  const auto require = [](bool condition) {
    if (!condition) std::abort();
  };
  const auto header = ParseSafetensorsHeader(std::as_bytes(std::span(data, size)), size, "fuzz");
  if (!header) {
    const std::string& m = header.error().message;
    require(m.size() < 2000 && std::none_of(m.begin(), m.end(), [](unsigned char c) { return c < 0x20; }));
    return 0;
  }
  uint64_t at = 0;
  for (const TensorEntry& t : header->tensors) {
    require(t.begin == at && TensorBytes(t, "fuzz").value() == t.end - t.begin);
    at = t.end;
  }
  require(header->data_begin + at == size);
  // What was read writes a header that reads back.
  std::string file(8, '\0');
  file += SafetensorsHeaderText(header->tensors, header->metadata);
  const uint64_t length = file.size() - 8;
  std::memcpy(file.data(), &length, 8);
  const auto again =
      ParseSafetensorsHeader(std::as_bytes(std::span(file.data(), file.size())), file.size() + at, "fuzz");
  require(again && again->tensors.size() == header->tensors.size() && again->metadata == header->metadata);
  return 0;
}
