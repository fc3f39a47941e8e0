// `kestrel inspect` on a folder with the release's config and its index of 497 220 names, and no weights: the numbers
// it must give, and what it may cost. Both files are made here.
#include <nlohmann/json.hpp>

#include "kestrel/model/presets.h"
#include "kestrel/model/tensor_names.h"
#include "tests/program.h"

namespace kestrel {
namespace {

using nlohmann::json;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeasured = false;  // sanitizers multiply both
#else
constexpr bool kMeasured = true;
#endif

constexpr int kShards = 96;

class InspectRelease : public test::ProgramTest {
 protected:
  static ModelConfig Config() {
    ModelConfig config = *PresetConfig("k3-slice");
    for (const char* s : {"layers=93", "experts=896", "topk=16"}) EXPECT_TRUE(ApplySetting(config, s));
    return config;
  }
  void Make() const {
    json root = json::parse(ToJson(Config()));
    root["vision_config"] = {{"vt_hidden_size", 1024},     {"vt_intermediate_size", 4096}, {"qkv_hidden_size", 1536},
                             {"patch_size", 14},           {"init_pos_emb_height", 64},    {"init_pos_emb_width", 64},
                             {"vt_num_hidden_layers", 27}, {"text_hidden_size", 7168}};
    test::WriteAll(dir_ / "config.json", root.dump());
    std::string text = "{\n  \"metadata\": {\n    \"total_size\": 1560860324864\n  },\n  \"weight_map\": {\n";
    int64_t count = 0;
    const auto add = [&](const std::string& name) {
      const auto shard = count++ * kShards / 497'220 + 1;
      text += (count > 1 ? ",\n" : "") +
              fmt::format("    \"{}\": \"model-{:05}-of-{:06}.safetensors\"", name, shard, kShards);
    };
    ForEachExpectedTensor(Config(), [&](const ExpectedTensor& t) { add(t.name); });
    for (int b = 0; b < 27; ++b) {
      for (const char* part : {"norm0", "norm1", "wqkv", "wo", "mlp.fc0", "mlp.fc1"})
        add(fmt::format("vision_tower.encoder.blocks.{}.{}.weight", b, part));
    }
    for (const char* name :
         {"vision_tower.patch_embed.proj", "vision_tower.patch_embed.pos_emb", "vision_tower.encoder.final_layernorm",
          "mm_projector.proj.0", "mm_projector.proj.2", "mm_projector.post_norm"})
      add(std::string(name) + ".weight");
    ASSERT_EQ(count, 497'220);
    test::WriteAll(dir_ / "model.safetensors.index.json", text + "\n  }\n}\n");
  }
};

TEST_F(InspectRelease, GivesTheNumbersOfTheRelease) {
  Make();
  const test::Outcome o = Run("inspect " + dir_.string() + " --json");
  ASSERT_EQ(o.code, 0) << o.err;
  const json r = json::parse(o.out);
  EXPECT_EQ(r["sizes_from"], "index");
  EXPECT_EQ(r["tensors"], 497'220);
  EXPECT_EQ(r["bytes"], 1'560'860'324'864);
  EXPECT_EQ(r["declared_bytes"], 1'560'860'324'864);
  EXPECT_EQ(r["shards"], kShards);
  EXPECT_EQ(r["shards_absent"], kShards);
  EXPECT_EQ(r["vision"]["tensors"], 168);
  EXPECT_EQ(r["missing"]["count"], 0);
  EXPECT_EQ(r["unknown"]["count"], 0);
  EXPECT_NEAR(r["parameters"].get<double>(), 2.78e12, 0.005e12);
  EXPECT_NEAR(r["active_parameters"].get<double>(), 104.2e9, 0.05e9);
  EXPECT_EQ(r["expert"]["bytes"], 17'547'264);
  EXPECT_EQ(r["layers"].size(), 93u);
}

TEST_F(InspectRelease, TakesUnder150BytesANameAnd1500Milliseconds) {
  Make();
  const std::string tiny = std::string(KESTREL_SOURCE_DIR) + "/tests/fixtures/k3-tiny";
  const int64_t base = Run("inspect " + tiny).max_rss_bytes;
  double least = 1e9;
  int64_t most = 0;
  for (int i = 0; i < 3; ++i) {
    const test::Outcome o = Run("inspect " + dir_.string());
    ASSERT_EQ(o.code, 0) << o.err;
    least = std::min(least, o.cpu_seconds);  // of one thread: waiting for a busy machine does not count
    most = std::max(most, o.max_rss_bytes);
  }
  const double bytes_a_name = static_cast<double>(most - base) / 497'220;
  RecordProperty("bytes_a_name", std::to_string(bytes_a_name));
  RecordProperty("cpu_seconds", std::to_string(least));
  fmt::print("{:.0f} bytes a name, {:.2f} s\n", bytes_a_name, least);
  if (!kMeasured) GTEST_SKIP() << "not measured under sanitizers";
  EXPECT_LT(bytes_a_name, 150);
  EXPECT_LT(least, 1.5);
}

}  // namespace
}  // namespace kestrel
