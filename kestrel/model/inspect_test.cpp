#include "kestrel/model/inspect.h"

#include <sys/stat.h>

#include "kestrel/model/checkpoint_test_support.h"

namespace kestrel {
namespace {

const std::string kFixtures = std::string(KESTREL_SOURCE_DIR) + "/tests/fixtures/";

class InspectFolder : public test::FolderTest {
 protected:
  std::string CopyOf(const std::string& fixture) {
    test::fs::copy(kFixtures + fixture, dir_ / fixture, test::fs::copy_options::recursive);
    return Path(fixture);
  }
};

// Sizes from the headers, from the index and from the config alone say the same of a published folder.
TEST_F(InspectFolder, HeadersIndexAndConfigAgree) {
  const std::string folder = CopyOf("k3-tiny");
  const auto headers = Inspect(folder, 100);
  ASSERT_TRUE(headers) << headers.error().message;
  EXPECT_EQ(headers->source, Inspection::Source::kHeaders);
  EXPECT_EQ(headers->missing.count + headers->unknown.count, 0);
  EXPECT_EQ(headers->declared_bytes == 0 || headers->declared_bytes == headers->bytes, true);
  const auto checkpoint = Checkpoint::Open(folder);
  EXPECT_EQ(headers->bytes, checkpoint->tensor_bytes());
  EXPECT_EQ(headers->tensors, static_cast<int64_t>(checkpoint->places().size()));
  test::fs::remove(folder + "/model-00002-of-000002.safetensors");
  const auto index = Inspect(folder, 100);
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_EQ(index->source, Inspection::Source::kIndex);
  EXPECT_EQ(index->shards_absent, 1);
  EXPECT_EQ(index->shards, 2);
  test::fs::remove(folder + "/model.safetensors.index.json");
  const auto config = Inspect(folder, 100);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->source, Inspection::Source::kConfig);
  for (const auto& other : {*index, *config}) {
    EXPECT_EQ(other.tensors, headers->tensors);
    EXPECT_EQ(other.text.parameters, headers->text.parameters);
    EXPECT_EQ(other.text.active, headers->text.active);
    ASSERT_EQ(other.components.size(), headers->components.size());
    for (size_t c = 0; c < other.components.size(); ++c)
      EXPECT_EQ(other.components[c].totals.parameters, headers->components[c].totals.parameters);
  }
}

TEST_F(InspectFolder, ComponentsAndLayersAddUp) {
  const auto it = Inspect(kFixtures + "k3-tiny", 100);
  ASSERT_TRUE(it);
  int64_t parameters = 0, active = 0;
  uint64_t bytes = 0, read = 0;
  for (const ComponentTotals& c : it->components) {
    parameters += c.totals.parameters, active += c.totals.active;
    bytes += c.totals.bytes, read += c.totals.read_bytes;
  }
  EXPECT_EQ(parameters, it->text.parameters);
  EXPECT_EQ(active, it->text.active);
  EXPECT_EQ(bytes, it->text.bytes);
  EXPECT_EQ(read, it->text.read_bytes);
  // Idle: all but 4 of 16 experts in 12 layers, and all but one row of the embedding.
  const int64_t expert = 3 * 64 * 64;
  EXPECT_EQ(it->expert.parameters, expert);
  EXPECT_EQ(it->text.parameters - it->text.active, 12 * 12 * expert + 511 * 128);
  ASSERT_EQ(it->layers.size(), 13u);
  EXPECT_TRUE(it->layers[0].kda);
  EXPECT_FALSE(it->layers[3].kda);
  EXPECT_FALSE(it->layers[0].moe);
  EXPECT_EQ(it->layers[12].block, 3);
}

// E03: routed weights are counted at the latent width, and the state at the architecture's own size.
TEST_F(InspectFolder, TheReleasesNumbers) {
  const ModelConfig config = test::Config("k3-slice", {"layers=93", "experts=896", "topk=16"});
  test::WriteAll(dir_ / "config.json", ToJson(config));
  const auto it = Inspect(dir_.string(), 1000);
  ASSERT_TRUE(it) << it.error().message;
  EXPECT_EQ(it->expert.bytes, 17'547'264u);
  EXPECT_EQ(it->expert.parameters, 3 * 3584 * 3072);
  EXPECT_EQ(it->tensors, 497'220 - 168);  // the text model's
  EXPECT_NEAR(static_cast<double>(it->text.parameters), 2.78e12, 0.005e12);
  EXPECT_NEAR(static_cast<double>(it->text.active), 104.2e9, 0.05e9);
  EXPECT_EQ(it->state.kda_matrices, uint64_t{69} * 96 * 128 * 128 * 4);
  EXPECT_GE(it->state.kda_kept, it->state.kda_matrices);
}

TEST_F(InspectFolder, StrangersAreNamedAndVisionIsCounted) {
  const std::string folder = CopyOf("linear-tiny"), file = folder + "/model.safetensors";
  const auto opened = SafetensorsFile::Open(file);
  ASSERT_TRUE(opened) << opened.error().message;
  std::vector<TensorToWrite> tensors;
  for (const TensorEntry& t : opened->tensors()) {
    if (t.name != "model.norm.weight") tensors.push_back({t.name, t.dtype, t.shape, opened->View(t).bytes});
  }
  const std::string data(16, 'x');
  const auto bytes = std::as_bytes(std::span(data.data(), data.size()));
  tensors.push_back({"vision_tower.patch_embed.proj.weight", Dtype::kBF16, {2, 4}, bytes});
  for (int i = 0; i < 7; ++i) tensors.push_back({"stran\nger." + std::to_string(i), Dtype::kU8, {16}, bytes});
  ASSERT_TRUE(WriteSafetensors(Path("new"), tensors, {}));
  test::fs::rename(Path("new"), file);
  const auto it = Inspect(folder, 100);
  ASSERT_TRUE(it) << it.error().message;
  EXPECT_EQ(it->missing.count, 1);
  EXPECT_EQ(it->missing.first, std::vector<std::string>{"model.norm.weight"});
  EXPECT_EQ(it->unknown.count, 7);
  ASSERT_EQ(it->unknown.first.size(), 5u);
  EXPECT_EQ(it->unknown.first[0].find('\n'), std::string::npos);
  EXPECT_EQ(it->vision.tensors, 1);
  EXPECT_EQ(it->vision.parameters, 8);
  EXPECT_EQ(it->vision.bytes, 16u);
  EXPECT_EQ(it->tensors, it->text.tensors + 8);
}

TEST_F(InspectFolder, BadInputIsOneLine) {
  const auto expect = [&](const std::string& folder, int64_t context, std::string_view word) {
    const auto it = Inspect(folder, context);
    ASSERT_FALSE(it) << folder;
    EXPECT_EQ(it.error().message.find('\n'), std::string::npos);
    EXPECT_NE(it.error().message.find(word), std::string::npos) << it.error().message;
  };
  for (const int64_t context : {int64_t{-1}, int64_t{1048577}, INT64_MAX})
    expect(kFixtures + "k3-tiny", context, std::to_string(context));
  expect(Path("nothing"), 1, "nothing");
  const std::string folder = CopyOf("k3-tiny"), index = folder + "/model.safetensors.index.json";
  for (const char* shard : {"../x", "/etc/passwd"}) {
    test::WriteAll(index, std::string("{\"weight_map\":{\"a\":\"") + shard + "\"}}");
    expect(folder, 1, "plain name");
  }
  test::fs::remove(index);
  ASSERT_EQ(mkfifo(index.c_str(), 0600), 0);
  expect(folder, 1, "pipe");
}

}  // namespace
}  // namespace kestrel
