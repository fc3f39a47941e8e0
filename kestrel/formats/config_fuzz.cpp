// libFuzzer: any text as config.json. Whatever it is: no crash, an error of one line, and an accepted config is whole
// and survives being written and read again.
#include <algorithm>
#include <cstdlib>

#include "kestrel/formats/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kestrel;
  const auto require = [](bool condition) {
    if (!condition) std::abort();
  };
  const auto config = ParseModelConfig({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!config) {
    const std::string& m = config.error().message;
    require(m.size() < 2000 && std::none_of(m.begin(), m.end(), [](unsigned char c) { return c < 0x20; }));
    return 0;
  }
  require(config->is_kda.size() == static_cast<size_t>(config->num_hidden_layers));
  require(config->experts_per_token <= config->num_experts);
  const auto again = ParseModelConfig(ToJson(*config), "fuzz");
  require(again && ToJson(*again) == ToJson(*config));
  return 0;
}
