// The program as a user types it: what it prints, what it refuses, and that it never leaves half a file.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "kestrel/formats/safetensors.h"

namespace kestrel {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kFixtures = std::string(KESTREL_SOURCE_DIR) + "/tests/fixtures/";

struct Outcome {
  int code;
  std::string out, err;
};

std::string ReadAll(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Cli : public testing::Test {
 protected:
  Cli() : dir_(fs::path(testing::TempDir()) / ("kestrel_cli_" + std::to_string(getpid()))) {
    fs::create_directories(dir_);
  }
  ~Cli() override { fs::remove_all(dir_); }

  Outcome Run(const std::string& arguments) const {
    const std::string err = Path("stderr");
    FILE* pipe = popen((std::string(KESTREL_PROGRAM) + " " + arguments + " 2>" + err).c_str(), "r");
    std::string out;
    char buffer[4096];
    while (const size_t n = fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, n);
    const int status = pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), out, ReadAll(err)};
  }
  json Json(const std::string& arguments) const {
    const Outcome o = Run(arguments);
    EXPECT_EQ(o.code, 0) << o.err;
    return json::parse(o.out, nullptr, false);
  }
  // One line, that names what went wrong, and exit code 1.
  void ExpectFailure(const std::string& arguments, const std::string& word) const {
    const Outcome o = Run(arguments);
    EXPECT_EQ(o.code, 1) << arguments << "\n" << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    EXPECT_EQ(o.err.rfind("kestrel: [", 0), 0u) << o.err;
    EXPECT_NE(o.err.find(word), std::string::npos) << o.err;
  }
  std::string Path(const std::string& name) const { return (dir_ / name).string(); }
  std::string Copy(const std::string& fixture) const {
    fs::copy(kFixtures + fixture, dir_ / fixture, fs::copy_options::recursive);
    return Path(fixture);
  }

  fs::path dir_;
};

std::string IdsOf(const std::string& golden, const std::string& name) {
  const auto file = SafetensorsFile::Open(kFixtures + golden + ".golden.safetensors");
  const TensorView v = file->View(*file->Find(name));
  std::string text;
  for (int64_t i = 0; i < v.elements(); ++i) {
    int64_t id;
    std::memcpy(&id, v.bytes.data() + i * 8, 8);
    text += (i > 0 ? "," : "") + std::to_string(id);
  }
  return text;
}

TEST_F(Cli, GenerateContinuesAsTheGoldenDoes) {
  for (const std::string model : {"k3-tiny", "linear-tiny"}) {
    const json r = Json("generate " + kFixtures + model + " --ids " + IdsOf(model, "ids") +
                        " -n 24 --ignore-eos --matmul f32 --json");
    EXPECT_EQ(r["ids"], json::parse("[" + IdsOf(model, "greedy") + "]"));
    EXPECT_EQ(r["finish_reason"], "length");
    EXPECT_EQ(r["prompt_ids"], json::parse("[" + IdsOf(model, "ids") + "]"));
    for (const char* key : {"load_s", "prefill_s", "decode_s", "prefill_tps", "decode_tps"}) {
      EXPECT_GT(r["timing"][key].get<double>(), 0) << key;
    }
  }
}

TEST_F(Cli, LogitsAreTheSameBitsForAnyChunkAndThreadCount) {
  const std::string base = "logits " + kFixtures + "k3-tiny --ids " + IdsOf("k3-tiny", "ids");
  for (const std::string mode : {"f32", "bf16"}) {
    const std::string whole = Path("whole." + mode), cut = Path("cut." + mode);
    ASSERT_EQ(Run(base + " --layers --matmul " + mode + " --out " + whole).code, 0);
    for (const std::string how : {"--chunk 1", "--chunk 7 --threads 1", "--chunk 64 --threads 3"}) {
      ASSERT_EQ(Run(base + " --layers --matmul " + mode + " " + how + " --out " + cut).code, 0);
      EXPECT_EQ(ReadAll(whole), ReadAll(cut)) << how;
    }
  }
}

TEST_F(Cli, StatesContinueWhereTheyWereSaved) {
  const std::string model = "generate " + kFixtures + "k3-tiny --matmul f32 --ignore-eos --json ";
  const json whole = Json(model + "--ids 1,2,3,4,5,6,7,8,9 -n 12");
  ASSERT_EQ(Run(model + "--ids 1,2,3,4,5 -n 0 --save-state " + Path("s")).code, 0);
  EXPECT_EQ(Json(model + "--ids 6,7,8,9 -n 12 --load-state " + Path("s"))["ids"], whole["ids"]);
  ExpectFailure("generate " + kFixtures + "linear-tiny --matmul f32 --ids 1 --load-state " + Path("s"), "fingerprint");
  fs::resize_file(Path("s"), fs::file_size(Path("s")) / 2);
  ExpectFailure("generate " + kFixtures + "k3-tiny --matmul f32 --ids 1 --load-state " + Path("s"), Path("s"));
}

TEST_F(Cli, SamplingIsReproducible) {
  const std::string run =
      "generate " + kFixtures + "k3-tiny --ids 1,2 -n 40 --ignore-eos --temperature 1 --top-p 0.95 --json";
  EXPECT_EQ(Json(run + " --seed 4")["ids"], Json(run + " --seed 4 --threads 1")["ids"]);
  EXPECT_NE(Json(run + " --seed 4")["ids"], Json(run + " --seed 5")["ids"]);
}

TEST_F(Cli, WrongUsageIsTwo) {
  for (const char* arguments : {"", "nonsense", "generate", "generate x", "generate x -p a --ids 1", "logits x --ids 1",
                                "generate x --ids 1 --matmul fp8", "generate x --ids 1 -n -1"}) {
    EXPECT_EQ(Run(arguments).code, 2) << arguments;
  }
  EXPECT_EQ(Run("--help").code, 0);
  EXPECT_EQ(Run("generate --help").code, 0);
}

TEST_F(Cli, BadInputIsOneLineAndNothingIsWritten) {
  const std::string tiny = kFixtures + "k3-tiny", out = Path("out.safetensors");
  ExpectFailure("generate " + Path("missing") + " --ids 1", "missing");
  ExpectFailure("generate " + kFixtures + "k3-tiny/config.json --ids 1", "config.json");
  ExpectFailure("generate " + tiny + " --ids 512", "512");
  ExpectFailure("generate " + tiny + " --ids -1", "-1");
  ExpectFailure("generate " + tiny + " --ids 1,x", "x");
  ExpectFailure("generate " + tiny + " --ids ''", "at least one");
  ExpectFailure("generate " + tiny + " -p hello", "tiktoken.model");
  ExpectFailure("logits " + tiny + " --ids 1,512 --out " + out, "512");
  ExpectFailure("logits " + tiny + " --ids 1 --out " + Path("no/such/folder/x"), "no/such/folder");
  EXPECT_FALSE(fs::exists(out));

  const std::string broken = Copy("k3-tiny");
  fs::resize_file(broken + "/model-00002-of-000002.safetensors", 2000000);
  ExpectFailure("generate " + broken + " --ids 1", "model-00002-of-000002.safetensors");
  fs::remove(broken + "/model-00002-of-000002.safetensors");
  ExpectFailure("generate " + broken + " --ids 1", "model-00002-of-000002.safetensors");
  for (const auto& entry : fs::directory_iterator(dir_)) {
    EXPECT_EQ(entry.path().filename().string().find("tmp"), std::string::npos) << entry.path();
  }
}

TEST_F(Cli, AFullDiskIsAnErrorAndLeavesTheOldFile) {
  EXPECT_EQ(Run("generate " + kFixtures + "k3-tiny --ids 1 -n 4 --json > /dev/full").code, 1);
}

}  // namespace
}  // namespace kestrel
