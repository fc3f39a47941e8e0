#include "kestrel/model/presets.h"

#include <gtest/gtest.h>

#include "kestrel/model/tensor_names.h"

namespace kestrel {
namespace {

// Parameters and bytes on disk, from the expected tensors alone.
struct Size {
  int64_t parameters = 0, bytes = 0;
};
Size SizeOfModel(const ModelConfig& config) {
  Size size;
  ForEachExpectedTensor(config, [&](const ExpectedTensor& t) {
    const int64_t n = NumElements(t.shape);
    const bool packed = t.kind == TensorKind::kMxfp4Packed, scale = t.kind == TensorKind::kMxfp4Scale;
    size.parameters += scale ? 0 : packed ? 2 * n : n;
    size.bytes += n * (packed || scale ? 1 : t.kind == TensorKind::kFloat ? 4 : 2);
  });
  return size;
}

TEST(Presets, ParseBackToThemselves) {
  ASSERT_EQ(PresetNames().size(), 5u);
  for (const std::string& name : PresetNames()) {
    const auto config = PresetConfig(name);
    ASSERT_TRUE(config) << name;
    const auto parsed = ParseModelConfig(ToJson(*config), name);
    ASSERT_TRUE(parsed) << parsed.error().message;
    EXPECT_TRUE(*parsed == *config) << name;
    EXPECT_FALSE(PresetSummary(name).empty());
    EXPECT_EQ(config->bos_token_id, config->vocab_size - 256);
    EXPECT_EQ(config->eos_token_ids, std::vector<int64_t>{config->vocab_size - 254});
    EXPECT_EQ(config->pad_token_id, config->vocab_size - 1);
    EXPECT_FALSE(config->is_kda.back()) << "the last layer is MLA";
  }
}

TEST(Presets, HaveTheSizesTheySayTheyHave) {
  EXPECT_LT(SizeOfModel(*PresetConfig("micro")).bytes, 2'000'000);
  EXPECT_NEAR(static_cast<double>(SizeOfModel(*PresetConfig("nano")).parameters), 20.9e6, 0.2e6);
  EXPECT_NEAR(static_cast<double>(SizeOfModel(*PresetConfig("mid")).bytes), 1.8e9, 0.05e9);
  EXPECT_LT(SizeOfModel(*PresetConfig("linear-mid")).bytes, 4'000'000'000);
}

TEST(Presets, LayersAreThreeToOneWithALastMla) {
  ModelConfig c = *PresetConfig("micro");
  ASSERT_TRUE(ApplySetting(c, "layers=93"));
  std::vector<int64_t> mla;
  for (int64_t i = 0; i < 93; ++i) {
    if (!c.is_kda[static_cast<size_t>(i)]) mla.push_back(i + 1);
  }
  ASSERT_EQ(mla.size(), 24u);  // the release's full_attn_layers: 4, 8, ..., 92, 93
  for (size_t i = 0; i < 23; ++i) EXPECT_EQ(mla[i], static_cast<int64_t>(4 * (i + 1)));
  EXPECT_EQ(mla.back(), 93);
  ASSERT_TRUE(ApplySetting(c, "layers=1"));
  EXPECT_EQ(c.is_kda, std::vector<bool>{false});
}

TEST(Presets, SettingsReachTheirFields) {
  ModelConfig c = *PresetConfig("micro");
  for (const char* s : {"hidden=96", "heads=3", "head_dim=16", "rope=8", "q_rank=0", "kv_rank=48", "dense=80",
                        "dense_layers=2", "experts=12", "topk=3", "shared=1", "expert=64", "latent=0", "vocab=1024",
                        "block=0", "context=777", "experts_type=bf16", "tied=true", "scaling=2.5"}) {
    EXPECT_TRUE(ApplySetting(c, s)) << s;
  }
  EXPECT_EQ(c.hidden_size, 96);
  EXPECT_EQ(c.kda.heads, 3);
  EXPECT_EQ(c.num_attention_heads, 3);
  EXPECT_EQ(c.kda.head_dim, 16);
  EXPECT_EQ(c.qk_nope_head_dim, 16);
  EXPECT_EQ(c.v_head_dim, 16);
  EXPECT_EQ(c.qk_rope_head_dim, 8);
  EXPECT_EQ(c.q_lora_rank, 0);
  EXPECT_EQ(c.kv_lora_rank, 48);
  EXPECT_EQ(c.intermediate_size, 80);
  EXPECT_EQ(c.first_k_dense_replace, 2);
  EXPECT_EQ(c.num_experts, 12);
  EXPECT_EQ(c.experts_per_token, 3);
  EXPECT_EQ(c.shared_experts, 1);
  EXPECT_EQ(c.moe_intermediate_size, 64);
  EXPECT_EQ(c.latent_size, 0);
  EXPECT_FALSE(c.latent_norm);
  EXPECT_EQ(c.vocab_size, 1024);
  EXPECT_EQ(c.bos_token_id, 768);
  EXPECT_EQ(c.attn_res_block_size, 0);
  EXPECT_EQ(c.max_position_embeddings, 777);
  EXPECT_FALSE(c.experts_mxfp4);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_EQ(c.routed_scaling_factor, 2.5);
  const auto parsed = ParseModelConfig(ToJson(c), "test");
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_TRUE(*parsed == c);
}

TEST(Presets, RefusesWhatItDoesNotKnow) {
  const auto unknown = PresetConfig("huge");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("k3-slice"), std::string::npos) << "lists the presets";
  ModelConfig c = *PresetConfig("micro");
  const ModelConfig before = c;
  const Status key = ApplySetting(c, "depth=5");
  ASSERT_FALSE(key);
  EXPECT_NE(key.error().message.find("layers, hidden"), std::string::npos) << "lists the keys";
  for (const char* s :
       {"", "layers", "layers=", "layers=0", "layers=-1", "layers=5x", "layers= 5", "layers=99999999999999999999",
        "vocab=256", "experts_type=fp8", "tied=yes", "scaling=nan", "scaling=0", "scaling=1e9", "=5"}) {
    const Status status = ApplySetting(c, s);
    EXPECT_FALSE(status) << s;
    if (!status) {
      EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    }
  }
  EXPECT_TRUE(c == before);
}

}  // namespace
}  // namespace kestrel
