// Files that are wrong in every way a model folder can be: the program answers with one line and exit code 1, ends by
// itself, and leaves nothing half written.
#include <sys/stat.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/program.h"

namespace kestrel {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kFixtures = std::string(KESTREL_SOURCE_DIR) + "/tests/fixtures/";
const std::string kShard1 = "model-00001-of-000002.safetensors", kShard2 = "model-00002-of-000002.safetensors";
const std::string kIndex = "model.safetensors.index.json";

class HostileFiles : public test::ProgramTest {
 protected:
  // A fresh copy of k3-tiny, damaged. Then every command that reads weights must refuse it, naming `word`.
  void Expect(const std::string& word, const std::function<void(const std::string&)>& damage, bool inspect = true) {
    const std::string folder = Path("m");
    fs::remove_all(folder);
    fs::copy(kFixtures + "k3-tiny", folder, fs::copy_options::recursive);
    damage(folder + "/");
    ExpectFailure("generate " + folder + " --ids 1 -n 1", word);
    if (inspect) ExpectFailure("inspect " + folder, word);
    ExpectFailure("logits " + folder + " --ids 1 --out " + Path("o"), word);
    for (const auto& e : fs::directory_iterator(dir_)) EXPECT_EQ(e.path().filename(), "m");
  }
  void ExpectConfig(const std::string& key, const json& value, const std::string& word) {
    SCOPED_TRACE(key + " = " + value.dump());
    Expect(word, [&](const std::string& m) {
      json config = json::parse(test::ReadAll(m + "config.json"));
      config["text_config"][key] = value;
      test::WriteAll(m + "config.json", config.dump());
    });
  }
  // Shard 2 with its header rewritten; the data stays.
  void ExpectHeader(const std::string& word, const std::function<void(json&)>& change) {
    Expect(word, [&](const std::string& m) {
      const std::string file = test::ReadAll(m + kShard2);
      uint64_t length = 0;
      std::memcpy(&length, file.data(), 8);
      json header = json::parse(file.substr(8, length));
      change(header);
      const std::string text = header.dump();
      std::string out(8, '\0');
      const uint64_t size = text.size();
      std::memcpy(out.data(), &size, 8);
      test::WriteAll(m + kShard2, out + text + file.substr(8 + length));
    });
  }
};

std::string FirstTensor(const json& header) {
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__" && value["data_offsets"][0] == 0) return name;
  }
  return "";
}

TEST_F(HostileFiles, HeaderLengths) {
  for (const uint64_t length : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{100'000'001}, uint64_t{2'800'000}}) {
    Expect("header length", [&](const std::string& m) {
      std::string file = test::ReadAll(m + kShard2);
      std::memcpy(file.data(), &length, 8);
      test::WriteAll(m + kShard2, file);
    });
  }
}

TEST_F(HostileFiles, Headers) {
  const auto set = [](const char* key, json value) { return [=](json& h) { h[FirstTensor(h)][key] = value; }; };
  ExpectHeader("2^63", set("shape", {4194305, 4194305, 211106198978564}));
  ExpectHeader("shape", set("shape", {-1, 4}));
  ExpectHeader("bytes for", set("shape", {1}));
  ExpectHeader("dtype", set("dtype", "F31"));
  ExpectHeader("data_offsets", set("data_offsets", {8, 0}));
  ExpectHeader("data_offsets", set("data_offsets", {-8, 0}));
  ExpectHeader("want an object", [](json& h) { h = json::array(); });
  ExpectHeader(kShard2, [](json& h) { h.erase(FirstTensor(h)); });  // a hole
  ExpectHeader(kShard2, [](json& h) { h["extra"] = {{"dtype", "U8"}, {"shape", {4}}, {"data_offsets", {0, 4}}}; });
}

TEST_F(HostileFiles, BytesThatAreNoSafetensors) {
  for (const std::string& bytes : {std::string(), std::string(7, 'x'), std::string(4096, '\xff'),
                                   std::string(4096, '\0'), std::string("\x10\0\0\0\0\0\0\0not json at all!", 24)}) {
    Expect(kShard2, [&](const std::string& m) { test::WriteAll(m + kShard2, bytes); });
  }
  Expect("trail", [&](const std::string& m) { test::WriteAll(m + kShard2, test::ReadAll(m + kShard2) + "x"); });
  Expect("truncated", [&](const std::string& m) { fs::resize_file(m + kShard2, fs::file_size(m + kShard2) - 1); });
}

TEST_F(HostileFiles, Indices) {
  const auto index = [&](const std::string& text) {
    return [=](const std::string& m) { test::WriteAll(m + kIndex, text); };
  };
  for (const char* shard : {"../x", "/etc/passwd", "..", "a/b", ""})
    Expect("plain name", index(R"({"weight_map":{"a":")" + std::string(shard) + "\"}}"));
  Expect(kIndex, index(""));
  Expect(kIndex, index("[]"));
  Expect(kIndex, index("{}"));
  Expect(kIndex, index("{\"weight_map\":" + std::string(100'000, '[')));
  Expect(kIndex, index("{\"weight_map\":{\"\xff\":\"a\"}}"));
  Expect("in no shard", [&](const std::string& m) {
    json j = json::parse(test::ReadAll(m + kIndex));
    j["weight_map"]["ghost"] = kShard1;
    test::WriteAll(m + kIndex, j.dump());
  });
  Expect("nowhere in the index", [&](const std::string& m) {
    json j = json::parse(test::ReadAll(m + kIndex));
    j["weight_map"].erase("language_model.lm_head.weight");
    test::WriteAll(m + kIndex, j.dump());
  });
  // Inspect works without the shards.
  Expect(
      "missing", [&](const std::string& m) { fs::remove(m + kShard2); }, false);
}

TEST_F(HostileFiles, ThingsThatAreNoFiles) {
  for (const std::string& name : {std::string("config.json"), kIndex, kShard2}) {
    Expect(name, [&](const std::string& m) {
      fs::remove(m + name);
      ASSERT_EQ(mkfifo((m + name).c_str(), 0600), 0);  // nobody ever writes to it
    });
    Expect(name, [&](const std::string& m) {
      fs::remove(m + name);
      fs::create_directory(m + name);
    });
  }
  Expect("out of the folder", [&](const std::string& m) {
    fs::remove(m + kShard2);
    fs::create_symlink(kFixtures + "k3-tiny/" + kShard2, m + kShard2);
  });
  const std::string file = kFixtures + "k3-tiny/config.json";
  for (const char* command : {"generate ", "inspect ", "verify ", "logits ", "quantize "}) {
    const std::string rest = std::string(command) == "logits " ? " --ids 1 --out " + Path("o")
                             : *command == 'g'                 ? " --ids 1"
                             : *command == 'q'                 ? " " + Path("q")
                                                               : "";
    ExpectFailure(command + file + rest, "config.json");
    ExpectFailure(command + Path("nothing") + rest, "nothing");
    ExpectFailure(command + Path(std::string(300, 'x')) + rest, "xxx");
  }
}

TEST_F(HostileFiles, Configs) {
  Expect("config.json", [](const std::string& m) { fs::remove(m + "config.json"); });
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("{}"), std::string(100'000, '['),
        std::string("{\"text_config\":{\"hidden_act\":\"\xff\"}}")})
    Expect("config.json", [&](const std::string& m) { test::WriteAll(m + "config.json", text); });
  for (const json& value : {json(0), json(-1), json(1e30), json("128"), json(nullptr), json::array()})
    ExpectConfig("hidden_size", value, "hidden_size");
  ExpectConfig("num_hidden_layers", 1'000'000'000, "num_hidden_layers");
  ExpectConfig("vocab_size", 1e18, "vocab_size");
  ExpectConfig("num_experts_per_token", 17, "num_experts_per_token");
  ExpectConfig("num_expert_group", 3, "num_expert_group");
}

TEST_F(HostileFiles, AHugeFileCostsNoMemory) {
  const std::string folder = Path("m");
  fs::copy(kFixtures + "k3-tiny", folder, fs::copy_options::recursive);
  for (const std::string& name : {std::string("config.json"), kIndex, kShard2}) {
    const auto size = fs::file_size(folder + "/" + name);
    fs::resize_file(folder + "/" + name, uintmax_t{1} << 40);  // sparse
    ExpectFailure("generate " + folder + " --ids 1", name);
    EXPECT_LT(Run("generate " + folder + " --ids 1").max_rss_bytes, int64_t{1} << 29) << name;
    fs::resize_file(folder + "/" + name, size);
  }
  test::WriteAll(dir_ / "s", "");
  fs::resize_file(dir_ / "s", uintmax_t{1} << 40);
  ExpectFailure("generate " + folder + " --ids 1 --load-state " + Path("s"), "state file");
}

TEST_F(HostileFiles, AFullDiskLeavesNothingOrTheOldFile) {
  const std::string tiny = kFixtures + "k3-tiny", full = "trap '' XFSZ; ulimit -f 8; ";
  test::WriteAll(dir_ / "o", "old");
  test::WriteAll(dir_ / "s", "old");
  ExpectFailure("logits " + tiny + " --ids 1,2,3,4,5,6,7,8 --out " + Path("o"), Path("o"), full);
  ExpectFailure("generate " + tiny + " --ids 1 -n 0 --json --save-state " + Path("s"), Path("s"), full);
  ExpectFailure("init " + Path("new") + " --preset micro", "can't be written", full);
  ExpectFailure("quantize " + kFixtures + "linear-tiny " + Path("new"), "can't be written", full);
  EXPECT_EQ(test::ReadAll(dir_ / "o"), "old");
  EXPECT_EQ(test::ReadAll(dir_ / "s"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()), 2);
}

// After all of it the good folder still works: nothing was left that changes a later run.
TEST_F(HostileFiles, EveryFlippedBitOfAStateIsRefused) {
  const std::string model = "generate " + kFixtures + "k3-tiny --ids 1 -n 1 --ignore-eos ";
  ASSERT_EQ(Run(model + "--save-state " + Path("s")).code, 0);
  const std::string good = test::ReadAll(dir_ / "s");
  for (const size_t at : {size_t{0}, size_t{9}, size_t{13}, size_t{17}, size_t{25}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    test::WriteAll(dir_ / "s", bad);
    ExpectFailure(model + "--load-state " + Path("s"), Path("s"));
  }
  test::WriteAll(dir_ / "s", good);
  EXPECT_EQ(Run(model + "--load-state " + Path("s")).code, 0);
}

}  // namespace
}  // namespace kestrel
