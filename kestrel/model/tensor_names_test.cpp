// What a config asks for by name, and that a checkpoint which holds anything else is refused with the tensor's name.
#include "kestrel/model/tensor_names.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "kestrel/model/checkpoint_test_support.h"

namespace kestrel {
namespace {

const std::string kFixtures = std::string(KESTREL_SOURCE_DIR) + "/tests/fixtures/";

std::vector<ExpectedTensor> Expected(const ModelConfig& config) {
  std::vector<ExpectedTensor> out;
  ForEachExpectedTensor(config, [&](const ExpectedTensor& t) { out.push_back(t); });
  return out;
}

// The fixtures were written by the reference, so their names and shapes are the published layout.
TEST(TensorNames, AreTheReferencesOwn) {
  for (const char* name : {"k3-tiny", "linear-tiny"}) {
    const auto config = ReadModelConfig(kFixtures + name);
    const auto checkpoint = Checkpoint::Open(kFixtures + name);
    ASSERT_TRUE(config && checkpoint);
    const Status fits = CheckTensors(*config, *checkpoint);
    EXPECT_TRUE(fits) << fits.error().message;
    std::set<std::string> names;
    for (const ExpectedTensor& t : Expected(*config)) EXPECT_TRUE(names.insert(t.name).second) << t.name;
  }
}

TEST(TensorNames, VisionIsKnownByItsPrefix) {
  for (const char* name : {"vision_tower.patch_embed.proj.weight", "vision_tower.encoder.blocks.26.mlp.fc1.weight",
                           "mm_projector.proj.0.weight"})
    EXPECT_TRUE(IsVisionTensor(name)) << name;
  for (const char* name :
       {"vision_tower", "model.vision_tower.x", "language_model.model.norm.weight", "mm_projectors.x", ""})
    EXPECT_FALSE(IsVisionTensor(name)) << name;
}

class BindFolder : public test::FolderTest {
 protected:
  struct Tensor {
    Dtype dtype;
    Shape shape;
    std::string bytes;
  };

  BindFolder() {
    // The smallest model with all parts: KDA and MLA layers, dense and MXFP4 experts, depth mixing.
    config_ = *ReadModelConfig(kFixtures + "k3-tiny");
    const auto checkpoint = Checkpoint::Open(kFixtures + "k3-tiny");
    for (const auto& [name, place] : checkpoint->places()) {
      const TensorView v = checkpoint->View(name);
      tensors_[std::string(name)] = {v.dtype, v.shape, {reinterpret_cast<const char*>(v.bytes.data()), v.bytes.size()}};
    }
  }
  Status Check() {
    std::vector<TensorToWrite> list;
    for (const auto& [name, t] : tensors_)
      list.push_back({name, t.dtype, t.shape, std::as_bytes(std::span(t.bytes.data(), t.bytes.size()))});
    EXPECT_TRUE(WriteSafetensors(Path("model.safetensors"), list, {}));
    const auto checkpoint = Checkpoint::Open(dir_.string());
    EXPECT_TRUE(checkpoint);
    return CheckTensors(config_, *checkpoint);
  }
  // Changes one tensor, expects an error that names it and has the words, and puts it back.
  template <class F>
  void Expect(const std::string& name, F change, ErrorCode code, std::initializer_list<std::string_view> words) {
    ASSERT_TRUE(tensors_.count(name)) << name;
    const Tensor kept = tensors_[name];
    change(tensors_[name]);
    const Status status = Check();
    tensors_[name] = kept;
    ASSERT_FALSE(status) << name;
    EXPECT_EQ(status.error().code, code) << status.error().message;
    EXPECT_EQ(status.error().message.rfind("[model.bind] " + name + ": ", 0), 0u) << status.error().message;
    EXPECT_EQ(status.error().message.find('\n'), std::string::npos);
    for (const auto word : words)
      EXPECT_NE(status.error().message.find(word), std::string::npos) << status.error().message;
  }

  ModelConfig config_;
  std::map<std::string, Tensor> tensors_;
};

const std::string kPrefix = "language_model.model.";

TEST_F(BindFolder, EveryTensorIsMissedWhenItIsGone) {
  // One of each kind: names that differ only in their numbers are one kind.
  std::set<std::string> kinds;
  for (const ExpectedTensor& t : Expected(config_)) {
    std::string kind = t.name;
    kind.erase(std::remove_if(kind.begin(), kind.end(), [](char c) { return c >= '0' && c <= '9'; }), kind.end());
    if (!kinds.insert(kind).second) continue;
    const Tensor kept = tensors_.at(t.name);
    tensors_.erase(t.name);
    const Status status = Check();
    tensors_[t.name] = kept;
    ASSERT_FALSE(status) << t.name;
    EXPECT_EQ(status.error().code, ErrorCode::kNotFound);
    EXPECT_EQ(status.error().message.rfind("[model.bind] " + t.name + ": missing, want ", 0), 0u)
        << status.error().message;
    EXPECT_NE(status.error().message.find(ToString(t.shape)), std::string::npos) << status.error().message;
  }
  EXPECT_GT(kinds.size(), 40u);
  EXPECT_TRUE(Check());
}

TEST_F(BindFolder, ASurplusTensorIsNamedAndVisionIsLeftAlone) {
  tensors_["vision_tower.patch_embed.proj.weight"] = {Dtype::kBF16, {1, 1}, "ab"};
  tensors_["mm_projector.proj.0.weight"] = {Dtype::kI64, {1}, "12345678"};
  EXPECT_TRUE(Check());
  tensors_[kPrefix + "layers.13.input_layernorm.weight"] = {Dtype::kBF16, {1}, "ab"};
  Expect(kPrefix + "layers.13.input_layernorm.weight", [](Tensor&) {}, ErrorCode::kMismatch,
         {"BF16 [1]", "no part of the model"});
  tensors_.erase(kPrefix + "layers.13.input_layernorm.weight");
  tensors_["evil\nname\x1b[2J"] = {Dtype::kU8, {1}, "a"};
  const Status status = Check();
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("evil\\x0aname\\x1b[2J"), std::string::npos) << status.error().message;
}

TEST_F(BindFolder, AWrongShapeIsNamed) {
  const auto turned = [](Tensor& t) { std::swap(t.shape[0], t.shape[1]); };
  Expect(kPrefix + "embed_tokens.weight", turned, ErrorCode::kMismatch, {"shape", "got [128, 512]", "want [512, 128]"});
  Expect(kPrefix + "layers.3.self_attn.kv_b_proj.weight", turned, ErrorCode::kMismatch, {"shape"});
  const auto flat = [](Tensor& t) { t.shape = {NumElements(t.shape)}; };
  Expect(kPrefix + "layers.0.self_attn.q_conv1d.weight", flat, ErrorCode::kMismatch, {"got [512]", "want [128, 1, 4]"});
  Expect(kPrefix + "layers.1.block_sparse_moe.experts.3.w2.weight_scale", flat, ErrorCode::kMismatch, {"shape"});
}

TEST_F(BindFolder, AWrongTypeIsNamed) {
  const auto as = [](Dtype dtype) {
    return [dtype](Tensor& t) {
      t = {dtype, t.shape, std::string(static_cast<size_t>(NumElements(t.shape)) * SizeOf(dtype), '\0')};
    };
  };
  Expect(kPrefix + "norm.weight", as(Dtype::kF16), ErrorCode::kMismatch, {"type", "got F16", "want BF16 or F32"});
  Expect(kPrefix + "layers.0.self_attn.q_proj.weight", as(Dtype::kF8E4M3), ErrorCode::kMismatch, {"type"});
  // Biases that decide near ties must be float32 (E01), and so must the gate's parameters.
  for (const char* name : {"layers.1.block_sparse_moe.gate.e_score_correction_bias", "layers.0.self_attn.A_log",
                           "layers.0.self_attn.dt_bias"})
    Expect(kPrefix + name, as(Dtype::kBF16), ErrorCode::kMismatch, {"type", "got BF16", "want F32"});
  Expect(kPrefix + "layers.1.block_sparse_moe.experts.0.w1.weight_packed", as(Dtype::kI8), ErrorCode::kMismatch,
         {"type", "want U8"});
}

// K01: the padding of A_log behind the heads is no per-channel value.
TEST_F(BindFolder, PaddingOfALogMustBeZero) {
  const std::string name = kPrefix + "layers.0.self_attn.A_log";
  ASSERT_EQ(tensors_[name].shape, Shape{32});  // 4 heads, padded to the head dimension
  Expect(name,
         [](Tensor& t) {
           const float x = 0.5f;
           std::memcpy(t.bytes.data() + 4 * 4, &x, 4);
         },
         ErrorCode::kMismatch, {"number 4", "padding", "got 0.5"});
  const std::string padded = tensors_[name].bytes;
  tensors_[name] = {Dtype::kF32, {4}, padded.substr(0, 16)};
  EXPECT_TRUE(Check());
  tensors_[name] = {Dtype::kF32, {1, 1, 4, 1}, padded.substr(0, 16)};
  EXPECT_TRUE(Check());
  Expect(name, [](Tensor& t) { t = {Dtype::kF32, {3}, t.bytes.substr(0, 12)}; }, ErrorCode::kMismatch, {"shape"});
}

// E05: 255 is NaN in e8m0; 0 is 2^-127.
TEST_F(BindFolder, AScaleOf255IsRefusedAndZeroIsNot) {
  const std::string name = kPrefix + "layers.1.block_sparse_moe.experts.0.w1.weight_scale";
  Expect(name, [](Tensor& t) { t.bytes.back() = '\xff'; }, ErrorCode::kNotFinite, {"255", "0 to 254"});
  tensors_[name].bytes[0] = '\0';
  tensors_[name].bytes[1] = '\xfe';
  EXPECT_TRUE(Check());
}

TEST_F(BindFolder, ConfigAndFilesThatDisagreeOnQuantizationSaySo) {
  config_.experts_mxfp4 = false;
  Status status = Check();
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("declares no quantization"), std::string::npos) << status.error().message;
  config_ = *ReadModelConfig(kFixtures + "linear-tiny");
  config_.experts_mxfp4 = true;
  const auto checkpoint = Checkpoint::Open(kFixtures + "linear-tiny");
  status = CheckTensors(config_, *checkpoint);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("declares MXFP4"), std::string::npos) << status.error().message;
}

// What is kept while binding is bounded by the files, whatever the config claims.
TEST_F(BindFolder, AConfigOfAMillionExpertsFailsAtTheFirstMissingOne) {
  config_.num_experts = 1 << 30;
  const Status status = Check();
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("block_sparse_moe.gate.weight"), std::string::npos) << status.error().message;
}

}  // namespace
}  // namespace kestrel
