#include "kestrel/model/quantize.h"

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kestrel/base/float_types.h"
#include "kestrel/base/rng.h"
#include "kestrel/formats/mxfp4.h"
#include "kestrel/model/checkpoint_test_support.h"
#include "kestrel/model/tensor_names.h"

namespace kestrel {
namespace {

using Quantize = test::FolderTest;

// The slow version: double arithmetic, nearest code by search. Returns the squared error.
double RefGroup(const float* in, int exponent, uint8_t* codes) {
  double error = 0;
  for (int i = 0; i < 32; ++i) {
    const double x = std::ldexp(std::abs(static_cast<double>(in[i])), -exponent);
    uint8_t code = 0;
    for (uint8_t c = 1; c < 8; ++c) {
      const double miss = std::abs(x - kE2m1[c]), best = std::abs(x - kE2m1[code]);
      if (miss < best || (miss == best && c % 2 == 0)) code = c;
    }
    error += std::pow(std::ldexp(x - kE2m1[code], exponent), 2);
    codes[i] = static_cast<uint8_t>(code | (in[i] < 0 ? 8 : 0));
  }
  return error;
}

TEST(Mxfp4Fast, AgreesWithTheSlowVersion) {
  Rng rng(1);
  for (int round = 0; round < 4000; ++round) {
    float x[32];
    // From denormals to the largest floats; a third of the rounds on a grid of quarters, where ties are.
    const int shift = static_cast<int>(rng.Below(270)) - 145;
    for (float& v : x) {
      v = round % 3 == 0 ? static_cast<float>(static_cast<int>(rng.Below(65)) - 32) / 4
                         : static_cast<float>(rng.Normal());
      v = std::clamp(std::ldexp(v, shift), -3e38f, 3e38f);
      if (rng.Below(9) == 0) v = 0;
    }
    float peak = 0;
    for (const float v : x) peak = std::max(peak, std::abs(v));
    const int exponent = peak > 0 ? std::max(std::ilogb(peak) - 2, -127) : -127;
    uint8_t low[32], high[32], packed[16], scale;
    const double low_error = RefGroup(x, exponent, low), high_error = RefGroup(x, exponent + 1, high);
    for (const Mxfp4Rule rule : {Mxfp4Rule::kFloor, Mxfp4Rule::kBestOfTwo}) {
      const bool up = rule == Mxfp4Rule::kBestOfTwo && high_error < low_error;
      QuantizeMxfp4(x, rule, packed, &scale);
      ASSERT_EQ(scale, exponent + (up ? 1 : 0) + 127) << round;
      for (int i = 0; i < 32; ++i) {
        ASSERT_EQ(packed[i / 2] >> (4 * (i % 2)) & 15, (up ? high : low)[i]) << round << " " << i << " " << x[i];
      }
    }
  }
}

double SquaredError(std::span<const float> x, Mxfp4Rule rule) {
  std::vector<uint8_t> packed(x.size() / 2), scale(x.size() / 32);
  std::vector<float> y(x.size());
  QuantizeMxfp4(x, rule, packed.data(), scale.data());
  DequantizeMxfp4(packed.data(), scale.data(), y);
  double error = 0;
  for (size_t i = 0; i < x.size(); ++i) error += std::pow(static_cast<double>(x[i]) - y[i], 2);
  return error;
}

std::string MakeSource(const std::string& folder) {
  test::WriteAll(folder + "/tiktoken.model", "QQ== 0\n");
  test::WriteAll(folder + "/tokenizer_config.json", "{\"a\": 1}");
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(test::ReadAll(folder + "/config.json"));
  config["text_config"]["my_own_key"] = {{"kept", true}};
  config["vision_config"] = {{"vt_hidden_size", 1024}};
  test::WriteAll(folder + "/config.json", config.dump());
  return folder;
}

TEST_F(Quantize, ExpertsBecomeMxfp4AndAllElseIsTheSameBytes) {
  const ModelConfig config = test::Config("micro", {"experts_type=bf16"});
  const std::string in = MakeSource(Make("in", config)), out = Path("out");
  const auto report = QuantizeExperts(pool_, in, out, {});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->matrices, 4 * 8 * 3);

  const auto read = ReadModelConfig(out);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(read->experts_mxfp4);
  const auto a = Checkpoint::Open(in), b = Checkpoint::Open(out);
  ASSERT_TRUE(a && b);
  const Status fits = CheckTensors(*read, *b);
  ASSERT_TRUE(fits) << fits.error().message;
  double best = 0, floor = 0, weight = 0;
  for (const auto& [name, place] : a->places()) {
    const TensorView from = a->View(name);
    if (b->Contains(name)) {
      const TensorView to = b->View(name);
      EXPECT_TRUE(from.dtype == to.dtype && from.shape == to.shape) << name;
      EXPECT_EQ(std::memcmp(from.bytes.data(), to.bytes.data(), from.bytes.size()), 0) << name;
      continue;
    }
    ASSERT_NE(name.find(".experts."), std::string_view::npos) << name;
    std::vector<float> x(static_cast<size_t>(from.elements())), y(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      bf16 h;
      std::memcpy(&h, from.bytes.data() + 2 * i, 2);
      x[i] = ToFloat(h);
      weight += std::pow(static_cast<double>(x[i]), 2);
    }
    const std::string stem(name);
    DequantizeMxfp4(b->View(stem + "_packed").as<uint8_t>(), b->View(stem + "_scale").as<uint8_t>(), y);
    double error = 0;
    for (size_t i = 0; i < x.size(); ++i) error += std::pow(static_cast<double>(x[i]) - y[i], 2);
    EXPECT_LE(error, SquaredError(x, Mxfp4Rule::kFloor)) << name;
    best += error;
    floor += SquaredError(x, Mxfp4Rule::kFloor);
  }
  EXPECT_LT(best, floor);
  // Both sides add the same terms, in double, in other orders.
  EXPECT_NEAR(report->relative_error, std::sqrt(best / weight), 1e-9);
}

TEST_F(Quantize, KeepsTheUsersConfigAndTokenizer) {
  const std::string in = MakeSource(Make("in", test::Config("micro", {"experts_type=bf16"}))), out = Path("out");
  ASSERT_TRUE(QuantizeExperts(pool_, in, out, {}));
  auto before = nlohmann::json::parse(test::ReadAll(in + "/config.json"));
  auto after = nlohmann::json::parse(test::ReadAll(out + "/config.json"));
  EXPECT_EQ(after["text_config"]["quantization_config"]["format"], "mxfp4-pack-quantized");
  after["text_config"].erase("quantization_config");
  EXPECT_EQ(before, after);
  for (const char* name : {"tiktoken.model", "tokenizer_config.json", "generation_config.json"}) {
    EXPECT_EQ(test::ReadAll(in + "/" + name), test::ReadAll(out + "/" + name)) << name;
    EXPECT_FALSE(test::ReadAll(out + "/" + name).empty()) << name;
  }
}

TEST_F(Quantize, FlatConfigsAndShardsAndThreadCounts) {
  const ModelConfig config =
      test::Config("linear-mid", {"layers=5", "hidden=64", "heads=2", "head_dim=32", "rope=16", "kv_rank=32",
                                  "dense=128", "experts=8", "topk=2", "expert=32", "vocab=512"});
  const std::string in = Make("in", config, 3, 200'000);
  ThreadPool one(1), three(3);
  const auto a = QuantizeExperts(one, in, Path("one"), {}, 150'000);
  const auto b = QuantizeExperts(three, in, Path("three"), {}, 150'000);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->relative_error, b->relative_error);
  EXPECT_TRUE(test::FolderBytes(Path("one")) == test::FolderBytes(Path("three")));
  EXPECT_GT(Checkpoint::Open(Path("one"))->shards().size(), 1u);
  EXPECT_TRUE(ReadModelConfig(Path("one"))->experts_mxfp4);
}

TEST_F(Quantize, RefusesWhatCannotBeQuantized) {
  const auto expect_refusal = [&](const std::string& in, const std::string& word) {
    const auto report = QuantizeExperts(pool_, in, Path("out"), {});
    ASSERT_FALSE(report) << word;
    EXPECT_NE(report.error().message.find(word), std::string::npos) << report.error().message;
    EXPECT_FALSE(test::fs::exists(dir_ / "out"));
    for (const auto& e : test::fs::directory_iterator(dir_))
      EXPECT_EQ(e.path().string().find(".tmp"), std::string::npos);
  };
  expect_refusal(Make("packed", test::Config("micro")), "MXFP4 already");
  expect_refusal(Make("narrow", test::Config("micro", {"experts_type=bf16", "expert=40"})), "multiple of 32");
  expect_refusal(Make("dense", test::Config("micro", {"experts=0"})), "no routed experts");
  expect_refusal(Path("nowhere"), "want a model folder");

  const std::string nan = Make("nan", test::Config("micro", {"experts_type=bf16"})), file = nan + "/model.safetensors";
  const std::string tensor = "language_model.model.layers.2.block_sparse_moe.experts.7.w3.weight";
  test::Overwrite(file, test::PlaceInFile(file, tensor) + 2 * 5, "\xc0\x7f");
  expect_refusal(nan, tensor + ": number 5, got nan");
}

TEST_F(Quantize, DoesNotTouchAFolderThatHoldsSomething) {
  const std::string in = Make("in", test::Config("micro", {"experts_type=bf16"}));
  const auto before = test::FolderBytes(in);
  EXPECT_FALSE(QuantizeExperts(pool_, in, in, {}));
  EXPECT_TRUE(before == test::FolderBytes(in));
}

}  // namespace
}  // namespace kestrel
