#include "kestrel/model/verify.h"

#include "kestrel/model/checkpoint_test_support.h"

namespace kestrel {
namespace {

using VerifyFolder = test::FolderTest;

std::string All(const VerifyReport& report) {
  std::string text;
  for (const VerifyProblem& p : report.problems) text += p.where + ": " + p.what + "\n";
  return text;
}

TEST_F(VerifyFolder, AFreshModelIsWhole) {
  for (const uint64_t shard : {kShardBytes, uint64_t{100'000}}) {
    const std::string folder = Make("m" + std::to_string(shard), test::Config("micro"), 0, shard);
    double last = 0;
    const auto report = Verify(pool_, folder, [&](double done, double total) { last = done / total; });
    ASSERT_TRUE(report);
    EXPECT_TRUE(report->problems.empty()) << All(*report);
    const auto checkpoint = Checkpoint::Open(folder);
    EXPECT_EQ(report->bytes, checkpoint->tensor_bytes());
    EXPECT_EQ(report->tensors, static_cast<int64_t>(checkpoint->places().size()));
    EXPECT_LE(last, 1);
  }
}

TEST_F(VerifyFolder, NamesTheFirstBadValueAndCounts) {
  const std::string folder = Make("m", test::Config("micro", {"vocab=65536"})), file = folder + "/model.safetensors";
  const std::string embedding = "language_model.model.embed_tokens.weight";
  const std::string bias = "language_model.model.layers.0.self_attn.dt_bias";
  const std::string scale = "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_scale";
  const uint64_t at = test::PlaceInFile(file, embedding);
  // 8 MB: three values in its second part of 4 MB, one of them minus infinity
  for (const uint64_t i : {2'100'000u, 2'100'007u, 4'000'000u}) {
    test::Overwrite(file, at + 2 * i, i == 2'100'007u ? std::string("\x80\xff") : std::string("\xc0\x7f"));
  }
  test::Overwrite(file, test::PlaceInFile(file, bias) + 4 * 3, std::string_view("\0\0\x80\x7f", 4));
  test::Overwrite(file, test::PlaceInFile(file, scale) + 9, "\xff");
  auto report = Verify(pool_, folder, {});
  ASSERT_TRUE(report);
  std::sort(report->problems.begin(), report->problems.end(),
            [](const VerifyProblem& a, const VerifyProblem& b) { return a.where < b.where; });
  ASSERT_EQ(report->problems.size(), 3u) << All(*report);
  EXPECT_EQ(report->problems[0].where, embedding);
  EXPECT_EQ(report->problems[0].first_bad, 2'100'000);
  EXPECT_EQ(report->problems[0].bad_values, 3);
  EXPECT_EQ(report->problems[1].where, bias);
  EXPECT_EQ(report->problems[1].first_bad, 3);
  EXPECT_EQ(report->problems[1].bad_values, 1);
  EXPECT_EQ(report->problems[2].where, scale);
  EXPECT_EQ(report->problems[2].first_bad, 9);
}

// The largest finite values and negative zero are no problem.
TEST_F(VerifyFolder, LargeFiniteValuesAreFine) {
  const std::string folder = Make("m", test::Config("micro")), file = folder + "/model.safetensors";
  const uint64_t at = test::PlaceInFile(file, "language_model.model.embed_tokens.weight");
  test::Overwrite(file, at, std::string_view("\x7f\x7f\x7f\xff\x00\x80", 6));
  const auto report = Verify(pool_, folder, {});
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->problems.empty()) << All(*report);
}

TEST_F(VerifyFolder, ATruncatedShardIsAProblemAndTheOthersAreStillRead) {
  const std::string folder = Make("m", test::Config("micro"), 0, 200'000);
  const std::string first = folder + "/model-00001-of-000004.safetensors",
                    second = folder + "/model-00002-of-000004.safetensors";
  const size_t tensors = SafetensorsFile::Open(first)->tensors().size();
  test::fs::resize_file(second, test::fs::file_size(second) - 1);
  test::Overwrite(first, test::PlaceInFile(first, "language_model.model.embed_tokens.weight"), "\xc0\x7f");
  const auto report = Verify(pool_, folder, {});
  ASSERT_TRUE(report);
  ASSERT_EQ(report->problems.size(), 2u) << All(*report);
  EXPECT_NE(report->problems[0].what.find(second), std::string::npos) << All(*report);
  EXPECT_EQ(report->problems[1].first_bad, 0);
  EXPECT_GT(report->tensors, static_cast<int64_t>(tensors));
}

TEST_F(VerifyFolder, EveryOtherDamage) {
  const auto problems = [&](const std::string& name, const std::function<void(const std::string&)>& damage) {
    const std::string folder = Make(name, test::Config("micro"), 0, 200'000);
    damage(folder);
    const auto report = Verify(pool_, folder, {});
    EXPECT_TRUE(report);
    EXPECT_FALSE(report->problems.empty()) << name;
    for (const VerifyProblem& p : report->problems) EXPECT_EQ(p.what.find('\n'), std::string::npos);
    return All(*report);
  };
  EXPECT_NE(problems("config", [](auto& f) { test::fs::remove(f + "/config.json"); }).find("config.json"),
            std::string::npos);
  EXPECT_NE(
      problems("gone", [](auto& f) { test::fs::remove(Checkpoint::Open(f)->shards()[1].path()); }).find("missing"),
      std::string::npos);
  EXPECT_NE(problems("index", [](auto& f) { test::WriteAll(f + "/model.safetensors.index.json", "{}"); }).find("index"),
            std::string::npos);
  EXPECT_NE(
      problems("empty", [](auto& f) { test::WriteAll(Checkpoint::Open(f)->shards()[0].path(), ""); }).find("size"),
      std::string::npos);
  EXPECT_NE(problems("mismatch",
                     [](auto& f) { test::WriteAll(f + "/config.json", ToJson(test::Config("micro", {"hidden=32"}))); })
                .find("shape"),
            std::string::npos);
}

TEST_F(VerifyFolder, AFileOrNothingIsAnError) {
  test::WriteAll(dir_ / "file", "x");
  for (const char* name : {"file", "nothing"}) {
    const auto report = Verify(pool_, Path(name), {});
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, ErrorCode::kNotFound);
  }
}

}  // namespace
}  // namespace kestrel
