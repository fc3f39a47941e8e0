#include "kestrel/model/init.h"

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>

#include "kestrel/base/float_types.h"
#include "kestrel/formats/mxfp4.h"
#include "kestrel/model/checkpoint_test_support.h"
#include "kestrel/model/tensor_names.h"

namespace kestrel {
namespace {

using Init = test::FolderTest;

std::vector<double> Values(const Checkpoint& checkpoint, const std::string& name) {
  const TensorView v = checkpoint.View(name);
  std::vector<double> out;
  for (int64_t i = 0; i < v.elements(); ++i) {
    if (v.dtype == Dtype::kBF16) {
      bf16 x;
      std::memcpy(&x, v.bytes.data() + i * 2, 2);
      out.push_back(static_cast<double>(ToFloat(x)));
    } else {
      float x;
      std::memcpy(&x, v.bytes.data() + i * 4, 4);
      out.push_back(static_cast<double>(x));
    }
  }
  return out;
}

// Mean, variance and fourth moment of a normal(0, stddev), each within five standard errors.
void ExpectNormal(const std::vector<double>& x, double stddev) {
  const auto n = static_cast<double>(x.size());
  double m1 = 0, m2 = 0, m4 = 0;
  for (const double v : x) {
    const double z = v / stddev;
    m1 += z / n;
    m2 += z * z / n;
    m4 += z * z * z * z / n;
  }
  EXPECT_NEAR(m1, 0, 5 * std::sqrt(1 / n));
  // bfloat16 rounds by 2^-9 relative at most, without bias; the table's tail ends at 4.3 deviations (-6e-4 of m4 = 3).
  EXPECT_NEAR(m2, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(m4, 3, 5 * std::sqrt(96 / n) + 5e-3);
}

TEST_F(Init, EveryPresetShapeLoadsByCheckTensors) {
  const ModelConfig configs[] = {
      test::Config("micro"),
      test::Config("micro", {"experts_type=bf16", "tied=true", "latent=0", "block=0", "q_rank=0"}),
      test::Config("linear-mid", {"layers=5", "hidden=64", "heads=2", "head_dim=32", "rope=16", "kv_rank=32",
                                  "dense=128", "experts=8", "topk=2", "expert=32", "vocab=512"})};
  int number = 0;
  for (const ModelConfig& config : configs) {
    const std::string folder = Make("m" + std::to_string(number++), config);
    const auto read = ReadModelConfig(folder);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(*read == config);
    const auto checkpoint = Checkpoint::Open(folder);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    const Status fits = CheckTensors(config, *checkpoint);
    EXPECT_TRUE(fits) << fits.error().message;
  }
}

TEST_F(Init, ValuesAreTheInitialOnes) {
  // wide enough that one matrix has more than one part (2^18 values)
  const ModelConfig config = test::Config("micro", {"hidden=320", "vocab=1024", "heads=8", "experts_type=bf16"});
  const auto checkpoint = Checkpoint::Open(Make("m", config));
  ASSERT_TRUE(checkpoint);
  const std::string p = "language_model.model.layers.0.self_attn.";
  ExpectNormal(Values(*checkpoint, "language_model.model.embed_tokens.weight"), 0.02);
  ExpectNormal(Values(*checkpoint, p + "q_proj.weight"), 0.02);
  ExpectNormal(Values(*checkpoint, "language_model.model.layers.1.block_sparse_moe.gate.weight"), 0.02);
  EXPECT_NE(Values(*checkpoint, p + "q_proj.weight"), Values(*checkpoint, p + "k_proj.weight"));
  for (const double x : Values(*checkpoint, p + "A_log")) EXPECT_EQ(x, 0);
  for (const double x : Values(*checkpoint, "language_model.model.norm.weight")) EXPECT_EQ(x, 1);
  for (const double x : Values(*checkpoint, "language_model.model.layers.0.mlp_res_proj.weight")) EXPECT_EQ(x, 0);
  for (const double x :
       Values(*checkpoint, "language_model.model.layers.1.block_sparse_moe.gate.e_score_correction_bias")) {
    EXPECT_EQ(x, 0);
  }
  double low = 1, high = 0;
  for (const double x : Values(*checkpoint, p + "dt_bias")) {
    const double dt = std::log1p(std::exp(x));
    low = std::min(low, dt);
    high = std::max(high, dt);
    EXPECT_GE(dt, 1e-3 * (1 - 1e-5));  // float32's rounding of x near -7: 2^-22 absolute, as much relative in dt
    EXPECT_LE(dt, 1e-1 * (1 + 1e-5));
  }
  EXPECT_LT(low, 2e-3) << "log-uniform: 15 % of 256 values are below";
  EXPECT_GT(high, 5e-2);
  double widest = 0;
  for (const double x : Values(*checkpoint, p + "q_conv1d.weight")) widest = std::max(widest, std::abs(x));
  EXPECT_LE(widest, 0.5);
  EXPECT_GT(widest, 0.49);
}

TEST_F(Init, SameSeedSameBytesAtAnyThreadCount) {
  const ModelConfig config = test::Config("micro", {"vocab=8192"});  // 2 parts a vocabulary matrix
  ThreadPool one(1), three(3);
  ASSERT_TRUE(InitCheckpoint(one, Path("one"), config, 7, {}));
  ASSERT_TRUE(InitCheckpoint(three, Path("three"), config, 7, {}));
  ASSERT_TRUE(InitCheckpoint(three, Path("other"), config, 8, {}));
  EXPECT_TRUE(test::FolderBytes(Path("one")) == test::FolderBytes(Path("three")));
  EXPECT_FALSE(test::ReadAll(Path("one") + "/model.safetensors") ==
               test::ReadAll(Path("other") + "/model.safetensors"));
}

TEST_F(Init, Mxfp4ExpertsAreTheQuantizedBfloat16Ones) {
  const auto half = Checkpoint::Open(Make("bf16", test::Config("micro", {"experts_type=bf16"})));
  const auto packed = Checkpoint::Open(Make("mxfp4", test::Config("micro")));
  ASSERT_TRUE(half && packed);
  const std::string name = "language_model.model.layers.1.block_sparse_moe.experts.3.w2.weight";
  const std::vector<double> wide = Values(*half, name);
  const std::vector<float> x(wide.begin(), wide.end());
  std::vector<uint8_t> codes(x.size() / 2), scales(x.size() / 32);
  QuantizeMxfp4(x, Mxfp4Rule::kFloor, codes.data(), scales.data());
  EXPECT_EQ(std::memcmp(codes.data(), packed->View(name + "_packed").bytes.data(), codes.size()), 0);
  EXPECT_EQ(std::memcmp(scales.data(), packed->View(name + "_scale").bytes.data(), scales.size()), 0);
}

TEST_F(Init, ShardsHoldTheSameTensorsAndAnIndex) {
  const ModelConfig config = test::Config("micro");
  const auto whole = Checkpoint::Open(Make("whole", config));
  const std::string folder = Make("shards", config, 0, 100'000);
  const auto shards = Checkpoint::Open(folder);
  ASSERT_TRUE(whole && shards);
  ASSERT_GT(shards->shards().size(), 3u);
  EXPECT_TRUE(test::fs::exists(folder + "/model.safetensors.index.json"));
  EXPECT_TRUE(CheckTensors(config, *shards));
  for (const SafetensorsFile& f : shards->shards()) {
    if (f.tensors().size() > 1) {
      EXPECT_LE(f.tensors().back().end, 100'000u);
    }
  }
  for (const auto& [name, place] : whole->places()) {
    const auto a = whole->View(name).bytes, b = shards->View(name).bytes;
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << name;
  }
}

TEST_F(Init, TakesAnEmptyFolderAndRefusesAnyOther) {
  const ModelConfig config = test::Config("micro");
  test::fs::create_directory(dir_ / "empty");
  EXPECT_TRUE(InitCheckpoint(pool_, Path("empty") + "/", config, 0, {}));
  EXPECT_TRUE(test::fs::exists(dir_ / "empty/config.json"));
  const auto before = test::FolderBytes(dir_ / "empty");
  test::WriteAll(dir_ / "file", "mine");
  test::fs::create_symlink("empty", dir_ / "link");
  for (const char* out : {"empty", "file", "link"}) {
    const Status status = InitCheckpoint(pool_, Path(out), config, 1, {});
    ASSERT_FALSE(status) << out;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument) << out;
  }
  EXPECT_TRUE(before == test::FolderBytes(dir_ / "empty"));
  EXPECT_EQ(test::ReadAll(dir_ / "file"), "mine");
  EXPECT_EQ(InitCheckpoint(pool_, Path("no/parent"), config, 0, {}).error().code, ErrorCode::kIo);
  EXPECT_FALSE(InitCheckpoint(pool_, "", config, 0, {}));
  EXPECT_FALSE(InitCheckpoint(pool_, "/", config, 0, {}));
}

TEST_F(Init, RefusesContradictionsAndLeavesNothing) {
  for (const char* setting : {"experts=1", "latent=48", "expert=40"}) {
    const Status status = InitCheckpoint(pool_, Path("m"), test::Config("micro", {setting}), 0, {});
    EXPECT_FALSE(status) << setting;
  }
  EXPECT_TRUE(test::fs::is_empty(dir_));
}

// A full disk, by the limit on a file's size; the signal that comes with it is ignored so that write(2) returns EFBIG.
TEST_F(Init, AFullDiskLeavesNothing) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 200'000;
  setrlimit(RLIMIT_FSIZE, &limit);
  const Status status = InitCheckpoint(pool_, Path("m"), test::Config("micro"), 0, {});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  EXPECT_TRUE(test::fs::is_empty(dir_));
}

}  // namespace
}  // namespace kestrel
