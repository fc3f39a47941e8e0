#include "kestrel/formats/model_config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "kestrel/formats/json.h"
#include "kestrel/formats/test_support.h"

namespace kestrel {
namespace {

using namespace formats_test;
using nlohmann::ordered_json;

const std::string kFixtures = std::string(KESTREL_SOURCE_DIR) + "/tests/fixtures/";

ordered_json Fixture(const std::string& name) {
  return *ParseStrictJson(ReadAll(kFixtures + name + "/config.json"), name);
}
Result<ModelConfig> Parse(const ordered_json& json) { return ParseModelConfig(json.dump(), "config.json"); }

// k3-tiny's config with one value of text_config replaced; "a/b" reaches inside.
Result<ModelConfig> With(const std::string& key, const ordered_json& value) {
  ordered_json json = Fixture("k3-tiny");
  json[ordered_json::json_pointer("/text_config/" + key)] = value;
  return Parse(json);
}
Result<ModelConfig> Without(const std::string& key) {
  ordered_json json = Fixture("k3-tiny");
  const ordered_json::json_pointer at("/text_config/" + key);
  json[at.parent_pointer()].erase(at.back());
  return Parse(json);
}
void ExpectRefused(const std::string& key, const ordered_json& value,
                   std::initializer_list<std::string_view> words = {}) {
  SCOPED_TRACE(key + " = " + value.dump().substr(0, 80));
  const auto parsed = With(key, value);
  const std::string last = key.substr(key.rfind('/') + 1);
  ExpectError(parsed, ErrorCode::kInvalidArgument,
              {"[formats.config] config.json: text_config.", last, "got ", "want "});
  ExpectError(parsed, ErrorCode::kInvalidArgument, words);
}

TEST(ModelConfig, ReadsTheNestedShape) {
  const auto c = Parse(Fixture("k3-tiny"));
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_TRUE(c->nested);
  EXPECT_EQ(c->hidden_size, 128);
  EXPECT_EQ(c->num_hidden_layers, 13);
  // full_attn_layers 4, 8, 12, 13 count from 1.
  for (int64_t i = 0; i < 13; ++i) EXPECT_EQ(c->is_kda[static_cast<size_t>(i)], i % 4 != 3 && i != 12) << i;
  EXPECT_EQ(c->kda.gate_lower_bound, -5.0);
  EXPECT_TRUE(c->kda.full_rank_gate);
  EXPECT_TRUE(c->mla_output_gate);
  EXPECT_TRUE(c->activation.situ);
  EXPECT_EQ(c->activation.beta, 4);
  EXPECT_EQ(c->activation.linear_beta, 25);
  EXPECT_EQ(c->latent_size, 64);
  EXPECT_TRUE(c->experts_mxfp4);
  EXPECT_EQ(c->eos_token_ids, std::vector<int64_t>{258});
  EXPECT_FALSE(c->is_moe(0));
  EXPECT_TRUE(c->is_moe(1));
  EXPECT_EQ(c->pushes(), 4);
}

TEST(ModelConfig, ReadsTheFlatShape) {
  const auto c = Parse(Fixture("linear-tiny"));
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_FALSE(c->nested);
  EXPECT_FALSE(c->kda.gate_lower_bound);
  EXPECT_FALSE(c->kda.full_rank_gate);
  EXPECT_FALSE(c->mla_output_gate);
  EXPECT_FALSE(c->activation.situ);
  EXPECT_EQ(c->q_lora_rank, 0);
  EXPECT_EQ(c->latent_size, 0);
  EXPECT_EQ(c->attn_res_block_size, 0);
  EXPECT_EQ(c->pushes(), 0);
  EXPECT_FALSE(c->experts_mxfp4);
}

TEST(ModelConfig, WhatIsWrittenParsesBack) {
  for (const char* name : {"k3-tiny", "linear-tiny"}) {
    const auto c = Parse(Fixture(name));
    const auto back = ParseModelConfig(ToJson(*c), "back");
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(ToJson(*back), ToJson(*c));
    EXPECT_TRUE(*back == *c);
    EXPECT_EQ(back->is_kda, c->is_kda);
    EXPECT_EQ(back->kda.gate_lower_bound, c->kda.gate_lower_bound);
  }
}

TEST(ModelConfig, MissingKeysHaveDefaultsOrAreNamed) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "kv_lora_rank",
                          "qk_nope_head_dim", "v_head_dim", "intermediate_size", "num_experts_per_token",
                          "moe_intermediate_size", "linear_attn_config/num_heads", "linear_attn_config/head_dim"}) {
    const std::string last = std::string(key).substr(std::string(key).rfind('/') + 1);
    ExpectError(Without(key), ErrorCode::kInvalidArgument, {last, "got nothing"});
  }
  for (const char* key :
       {"max_position_embeddings", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "q_lora_rank",
        "qk_rope_head_dim", "hidden_act", "num_shared_experts", "routed_scaling_factor", "num_expert_group",
        "attn_res_block_size", "quantization_config", "linear_attn_config", "num_experts"}) {
    EXPECT_TRUE(Without(key)) << key;
    EXPECT_TRUE(With(key, nullptr)) << key;
  }
}

TEST(ModelConfig, AbsurdValuesAreNamed) {
  const std::vector<ordered_json> absurd = {
      0,         -1,         1e30,     1.5, "128", true, ordered_json::array({1}), ordered_json::object(),
      INT64_MAX, UINT64_MAX, INT64_MIN};
  for (const char* key : {"hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "kv_lora_rank",
                          "q_lora_rank", "qk_nope_head_dim", "v_head_dim", "intermediate_size", "moe_intermediate_size",
                          "num_experts_per_token", "moe_layer_freq", "attn_res_block_size", "max_position_embeddings",
                          "routed_expert_hidden_size", "num_expert_group", "linear_attn_config/num_heads",
                          "linear_attn_config/head_dim", "linear_attn_config/short_conv_kernel_size"}) {
    for (const ordered_json& value : absurd) ExpectRefused(key, value);
  }
  for (const char* key : {"num_experts", "first_k_dense_replace", "num_shared_experts", "qk_rope_head_dim"}) {
    for (const ordered_json& value : absurd) {
      if (value != 0) ExpectRefused(key, value);
    }
  }
  for (const ordered_json& value : {ordered_json(-1.0), ordered_json(2), ordered_json("1e-5"), ordered_json(false)})
    ExpectRefused("rms_norm_eps", value);
  for (const ordered_json& value : {ordered_json(0.0), ordered_json(-1), ordered_json(1e300), ordered_json("1")})
    ExpectRefused("routed_scaling_factor", value);
  for (const ordered_json& value : {ordered_json(0), ordered_json(1), ordered_json(-100), ordered_json("-5")})
    ExpectRefused("linear_attn_config/gate_lower_bound", value);
  for (const char* key :
       {"tie_word_embeddings", "mla_use_output_gate", "latent_moe_use_norm", "linear_attn_config/use_full_rank_gate"}) {
    ExpectRefused(key, 1, {"true or false"});
    ExpectRefused(key, "true");
  }
  ExpectRefused("hidden_act", "gelu\n" + std::string(100'000, 'x'), {"situ or silu"});
  ExpectRefused("hidden_act", 5, {"a string"});
  ExpectRefused("moe_router_activation_func", "tanh", {"sigmoid or softmax"});
  ExpectRefused("linear_attn_config", 3, {"an object"});
}

TEST(ModelConfig, SizesThatNoMachineHoldsAreRefusedAtOnce) {
  ExpectRefused("num_hidden_layers", 1'000'000'000);
  ordered_json json = Fixture("k3-tiny");
  json["text_config"]["num_experts"] = 65536;
  json["text_config"]["num_hidden_layers"] = 1024;
  json["text_config"].erase("linear_attn_config");
  ExpectError(Parse(json), ErrorCode::kInvalidArgument, {"num_experts", "65536", "1024", "in all"});
  json["text_config"]["num_experts"] = 16;
  for (const char* key : {"hidden_size", "intermediate_size", "vocab_size"}) json["text_config"][key] = 1 << 24;
  ExpectError(Parse(json), ErrorCode::kInvalidArgument, {"hidden_size", "parameters", "at most"});
}

TEST(ModelConfig, ContradictionsAreNamed) {
  ExpectRefused("num_experts_per_token", 17, {"from 1 to 16"});
  ExpectRefused("num_expert_group", 3, {"divisor", "16"});
  ExpectRefused("num_key_value_heads", 2, {"num_attention_heads"});
  ExpectRefused("mla_use_nope", false);
  ExpectRefused("routed_expert_hidden_size", 48, {"multiple of 32"});
  ExpectRefused("moe_intermediate_size", 48, {"multiple of 32"});
  ExpectRefused("first_k_dense_replace", 14, {"num_hidden_layers = 13"});
  ExpectRefused("eos_token_id", 512, {"vocab_size = 512"});
  ExpectRefused("eos_token_id", ordered_json::array({1, 600}), {"600"});
  ExpectRefused("eos_token_id", ordered_json::array({1, -1}));
  ExpectRefused("eos_token_id", "1");
  ExpectRefused("bos_token_id", 512, {"vocab_size = 512"});
  ExpectRefused("pad_token_id", 9999, {"vocab_size = 512"});
  ExpectRefused("quantization_config/quant_method", "gptq", {"compressed-tensors"});
  ExpectRefused("quantization_config/format", "nvfp4-pack-quantized", {"mxfp4-pack-quantized"});
  ordered_json groups = Fixture("k3-tiny");
  groups["text_config"].update({{"num_expert_group", 4}, {"topk_group", 5}});
  ExpectError(Parse(groups), ErrorCode::kInvalidArgument, {"topk_group", "got 5"});
  groups["text_config"].update({{"topk_group", 1}, {"num_experts_per_token", 5}});
  ExpectError(Parse(groups), ErrorCode::kInvalidArgument, {"num_experts_per_token", "kept groups"});
}

TEST(ModelConfig, EachLayerIsInOneList) {
  const auto list = [](std::initializer_list<int64_t> layers) { return ordered_json(std::vector<int64_t>(layers)); };
  const char *kda = "linear_attn_config/kda_layers", *full = "linear_attn_config/full_attn_layers";
  ExpectError(With(kda, list({1, 2, 3, 4, 5, 6, 7, 9, 10, 11})), ErrorCode::kInvalidArgument,
              {"full_attn_layers", "layer 4 twice", "one of the two lists"});
  ExpectRefused(kda, list({1, 1, 2, 3, 5, 6, 7, 9, 10, 11}), {"layer 1 twice"});
  ExpectRefused(full, list({4, 8, 12, 12}), {"layer 12 twice"});
  EXPECT_FALSE(With(full, list({4, 8, 12})));
  ExpectRefused(kda, list({1, 2, 3, 5, 6, 7, 9, 10}), {"layer 11 in neither list"});
  ExpectRefused(kda, list({0, 1}), {"got 0"});
  ExpectRefused(kda, list({14}), {"got 14", "1 to 13"});
  ExpectRefused(kda, list({-1}));
  ExpectRefused(kda, "1,2,3");
  ExpectRefused(kda, ordered_json::array({"1"}));
  ExpectRefused(kda, ordered_json::array({1.5}));
}

TEST(ModelConfig, WhatIsNoConfigIsRefused) {
  for (const char* bad : {"", "[]", "1", "null", "{", "\x80", "{\"a\":1,\"a\":2}", "\xef\xbb\xbf{"})
    ExpectError(ParseModelConfig(bad, "config.json"), ErrorCode::kCorrupt, {"config.json"});
  ExpectError(ParseModelConfig("{}", "config.json"), ErrorCode::kInvalidArgument, {"hidden_size", "got nothing"});
  ExpectError(ParseModelConfig("{\"text_config\":[]}", "config.json"), ErrorCode::kInvalidArgument,
              {"text_config", "an object"});
  ExpectError(ParseModelConfig(std::string(100'000, '['), "config.json"), ErrorCode::kCorrupt, {"nesting"});
}

class ModelConfigs : public FolderTest {};

TEST_F(ModelConfigs, FolderIsAFolderWithAConfig) {
  ExpectError(ReadModelConfig(Path("nothing")), ErrorCode::kNotFound, {"got nothing", "model folder"});
  ExpectError(ReadModelConfig(""), ErrorCode::kNotFound, {"model folder"});
  ExpectError(ReadModelConfig(Path(std::string(300, 'x'))), ErrorCode::kNotFound, {"model folder"});
  fs::create_symlink("loop", dir_ / "loop");
  ExpectError(ReadModelConfig(Path("loop")), ErrorCode::kNotFound, {"model folder"});
  ExpectError(ReadModelConfig(dir_.string()), ErrorCode::kNotFound, {"config.json"});
  WriteAll(dir_ / "file", "{}");
  ExpectError(ReadModelConfig(Path("file")), ErrorCode::kNotFound, {"got a file", "model folder"});
  ASSERT_EQ(mkfifo(Path("config.json").c_str(), 0600), 0);
  ExpectError(ReadModelConfig(dir_.string()), ErrorCode::kIo, {"config.json", "pipe"});
  fs::remove(dir_ / "config.json");
  fs::create_directory(dir_ / "config.json");
  ExpectError(ReadModelConfig(dir_.string()), ErrorCode::kIo, {"config.json", "folder"});
  fs::remove(dir_ / "config.json");
  WriteAll(dir_ / "config.json", "{");
  fs::resize_file(dir_ / "config.json", uintmax_t{1} << 40);
  ExpectError(ReadModelConfig(dir_.string()), ErrorCode::kCorrupt, {"config.json", "size"});
}

}  // namespace
}  // namespace kestrel
