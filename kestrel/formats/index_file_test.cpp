#include "kestrel/formats/index_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "kestrel/formats/json.h"
#include "kestrel/formats/test_support.h"

namespace kestrel {
namespace {

using namespace formats_test;

void ExpectCorrupt(std::string_view json, std::initializer_list<std::string_view> words) {
  SCOPED_TRACE(std::string(json.substr(0, 200)));
  const auto parsed = IndexFile::Parse(json, "x.index.json");
  ExpectError(parsed, ErrorCode::kCorrupt, {"[formats.index] x.index.json: "});
  ExpectError(parsed, ErrorCode::kCorrupt, words);
}

TEST(IndexFile, FindsEveryNameInItsShard) {
  const auto index =
      IndexFile::Parse(R"({"metadata":{"total_size":1560860324864,"deep":{"weight_map":{"no":"no"}}},"other":[{"a":1}],
      "weight_map":{"b.weight":"s2","a.weight":"s1","a":"s2","":"s1"}})",
                       "x");
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_EQ(index->total_size(), 1560860324864u);
  EXPECT_EQ(index->shards(), (std::vector<std::string>{"s2", "s1"}));
  ASSERT_EQ(index->size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(index->Find(index->name(i)), i);
  for (size_t i = 1; i < 4; ++i) EXPECT_LT(index->name(i - 1), index->name(i));
  EXPECT_EQ(index->shards()[static_cast<size_t>(index->shard(*index->Find("a.weight")))], "s1");
  EXPECT_EQ(index->shards()[static_cast<size_t>(index->shard(*index->Find("b.weight")))], "s2");
  for (const char* no : {"no", "a.weigh", "a.weights", "c"}) EXPECT_FALSE(index->Contains(no));
}

TEST(IndexFile, WhatIsNoIndexIsRefused) {
  for (const char* bad :
       {"", "x", "[]", "1", "null", "{", "{}", "{\"weight_map\":{}}", "{\"weight_map\":1}", "{\"weight_map\":null}",
        "{\"weight_map\":\"a\"}", "{\"weight_map\":[\"a\"]}", "{\"weight_map\":{\"a\":1}}",
        "{\"weight_map\":{\"a\":null}}", "{\"weight_map\":{\"a\":[\"s\"]}}", "{\"weight_map\":{\"a\":{\"b\":\"s\"}}}",
        "{\"weight_map\":{\"a\":\"s\"}}x", "{\"weight_map\":{\"a\":\"s\"},\"weight_map\":{\"b\":\"s\"}}",
        "{\"weight_map\":{\"\x80\":\"s\"}}"}) {
    ExpectCorrupt(bad, {});
  }
  ExpectCorrupt("{}", {"weight_map is missing"});
  ExpectCorrupt(R"({"weight_map":{"a":"s","b":"s","a":"t"}})", {"'a'", "twice"});
  ExpectCorrupt(R"({"weight_map":{"a\n":7}})", {"'a\\x0a'", "name of a shard"});
  ExpectCorrupt("{\"metadata\":" + std::string(100'000, '['), {"nesting"});
  ExpectCorrupt("{\"weight_map\":{\"" + std::string(70'000, 'x') + "\":\"s\"}}", {"too long"});
}

TEST(IndexFile, NoShardLeadsOutOfTheFolder) {
  for (const std::string bad : {"../x", "..", ".", "", "/etc/passwd", "a/b", "a\\\\b", "a\\u0000b", "./a"}) {
    ExpectCorrupt(R"({"weight_map":{"a":"fine","b":")" + bad + "\"}}", {"'b'", "plain name"});
  }
  ExpectCorrupt("{\"weight_map\":{\"b\":\"" + std::string(256, 'x') + "\"}}", {"plain name"});
}

TEST(IndexFile, TheNumberOfShardsIsBounded) {
  std::string text = "{\"weight_map\":{\"0\":\"0\"";
  for (int i = 1; i <= 65536; ++i) text += ",\"" + std::to_string(i) + "\":\"" + std::to_string(i) + "\"";
  ExpectCorrupt(text + "}}", {"more than 65535 shards"});
}

class IndexFiles : public FolderTest {};

// Pages are dropped while a file of several drops (4 MiB each) is read: the names must not depend on it.
TEST_F(IndexFiles, ALargeFileReadsAsItsTextDoes) {
  std::string text = "{\"weight_map\":{\"first\":\"s0\"";
  for (int i = 0; i < 150'000; ++i)
    text += fmt::format(",\"model.layers.{}.block_sparse_moe.experts.w1.weight_packed\":\"model-{:05}.safetensors\"", i,
                        i % 96);
  text += "}}";
  ASSERT_GT(text.size(), size_t{10} << 20);
  WriteAll(dir_ / "i", text);
  const auto read = IndexFile::Read(Path("i")), parsed = IndexFile::Parse(text, "x");
  ASSERT_TRUE(read && parsed);
  ASSERT_EQ(read->size(), 150'001u);
  EXPECT_EQ(read->shards(), parsed->shards());
  for (size_t i = 0; i < read->size(); ++i) {
    ASSERT_EQ(read->name(i), parsed->name(i));
    ASSERT_EQ(read->shard(i), parsed->shard(i));
  }
}

TEST_F(IndexFiles, OnlyRegularFilesOfASaneSizeAreRead) {
  ExpectError(IndexFile::Read(Path("nothing")), ErrorCode::kNotFound, {"nothing"});
  ExpectError(IndexFile::Read(Path("")), ErrorCode::kIo, {"folder"});
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  ExpectError(IndexFile::Read(Path("pipe")), ErrorCode::kIo, {"pipe"});
  WriteAll(dir_ / "empty", "");
  ExpectError(IndexFile::Read(Path("empty")), ErrorCode::kCorrupt, {"empty"});
  WriteAll(dir_ / "huge", "{");
  fs::resize_file(dir_ / "huge", uintmax_t{1} << 40);  // sparse
  ExpectError(IndexFile::Read(Path("huge")), ErrorCode::kCorrupt, {"size", "1099511627776"});
}

}  // namespace
}  // namespace kestrel
