// Named configurations for `init`, the tests and the benches, and the settings that change them.
//
//   KESTREL_ASSIGN_OR_RETURN(ModelConfig config, PresetConfig("k3-slice"));
//   KESTREL_RETURN_IF_ERROR(ApplySetting(config, "layers=5"));
//
// Settings are checked one by one; that they fit together is for ParseModelConfig, which InitCheckpoint calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kestrel/base/result.h"
#include "kestrel/formats/model_config.h"

namespace kestrel {

std::vector<std::string> PresetNames();
std::string_view PresetSummary(std::string_view name);  // a line for --help; empty for an unknown name

Result<ModelConfig> PresetConfig(std::string_view name);

// "key=value", e.g. "experts=32". An unknown key's error lists the keys.
Status ApplySetting(ModelConfig& config, std::string_view key_value);
std::vector<std::string> SettingKeys();

}  // namespace kestrel
