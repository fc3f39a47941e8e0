#include "kestrel/formats/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "kestrel/formats/index_file.h"
#include "kestrel/formats/sharded_writer.h"
#include "kestrel/formats/test_support.h"

namespace kestrel {
namespace {

using namespace formats_test;

class Checkpoints : public FolderTest {
 protected:
  // a and b in shard-1, c in shard-2, and the index.
  void Make() {
    Shard("shard-1", {"a", "b"});
    Shard("shard-2", {"c"});
    Index(R"("a":"shard-1","b":"shard-1","c":"shard-2")");
  }
  void Shard(const std::string& name, const std::vector<std::string>& tensors) {
    const std::string data = "1234";
    std::vector<TensorToWrite> list;
    for (const std::string& t : tensors) list.push_back({t, Dtype::kU8, {4}, std::as_bytes(std::span(data.data(), 4))});
    ASSERT_TRUE(WriteSafetensors(Path(name), list, {}));
  }
  void Index(const std::string& map) {
    WriteAll(dir_ / "model.safetensors.index.json", "{\"weight_map\":{" + map + "}}");
  }
  void ExpectCheckpointError(ErrorCode code, std::initializer_list<std::string_view> words) {
    ExpectError(Checkpoint::Open(dir_.string()), code, words);
  }
};

TEST_F(Checkpoints, OneFileOrShards) {
  Shard("model.safetensors", {"a", "b"});
  auto one = Checkpoint::Open(dir_.string());
  ASSERT_TRUE(one) << one.error().message;
  EXPECT_EQ(one->places().size(), 2u);
  Make();  // the index goes before model.safetensors
  auto shards = Checkpoint::Open(dir_.string());
  ASSERT_TRUE(shards) << shards.error().message;
  EXPECT_EQ(shards->shards().size(), 2u);
  EXPECT_EQ(shards->tensor_bytes(), 12u);
  EXPECT_TRUE(shards->Contains("c"));
  EXPECT_EQ(shards->Find("d"), nullptr);
  EXPECT_EQ(shards->View("c").shape, Shape{4});
}

TEST_F(Checkpoints, IndexAndShardsMustAgree) {
  Make();
  fs::remove(dir_ / "shard-2");
  ExpectCheckpointError(ErrorCode::kNotFound, {Path("shard-2"), "missing"});
  Make();
  Index(R"("a":"shard-1","b":"shard-1","c":"shard-2","d":"shard-2")");
  ExpectCheckpointError(ErrorCode::kCorrupt, {"'d'", "in no shard", "shard-2"});
  Index(R"("a":"shard-1","b":"shard-2","c":"shard-2")");
  ExpectCheckpointError(ErrorCode::kCorrupt, {"'b'", "got it in shard-1", "want it in shard-2"});
  Index(R"("a":"shard-1","c":"shard-2")");
  ExpectCheckpointError(ErrorCode::kCorrupt, {"'b'", "nowhere in the index"});
  Make();
  Shard("shard-2", {"a", "c"});
  ExpectCheckpointError(ErrorCode::kCorrupt, {"'a'", "shard-1", "shard-2", "once"});
  Make();
  WriteAll(dir_ / "model.safetensors.index.json", "{}");
  ExpectCheckpointError(ErrorCode::kCorrupt, {"model.safetensors.index.json", "weight_map is missing"});
}

TEST_F(Checkpoints, ATruncatedShardIsNamed) {
  Make();
  fs::resize_file(dir_ / "shard-2", fs::file_size(dir_ / "shard-2") - 1);
  ExpectCheckpointError(ErrorCode::kCorrupt, {Path("shard-2"), "truncated"});
  fs::resize_file(dir_ / "shard-2", 5);
  ExpectCheckpointError(ErrorCode::kCorrupt, {Path("shard-2"), "got 5 bytes"});
}

TEST_F(Checkpoints, NothingLeadsOutOfTheFolder) {
  Make();
  const fs::path outside = dir_.string() + "_outside";
  fs::copy_file(dir_ / "shard-2", outside, fs::copy_options::overwrite_existing);
  Index(R"("a":"shard-1","b":"shard-1","c":"../)" + outside.filename().string() + "\"");
  ExpectCheckpointError(ErrorCode::kCorrupt, {"'c'", "plain name"});
  Index(R"("a":"shard-1","b":"shard-1","c":")" + outside.string() + "\"");
  ExpectCheckpointError(ErrorCode::kCorrupt, {"'c'", "plain name"});
  Make();
  fs::remove(dir_ / "shard-2");
  fs::create_symlink(outside, dir_ / "shard-2");
  ExpectCheckpointError(ErrorCode::kCorrupt, {Path("shard-2"), "link", "out of the folder"});
  // Two links, the second of which leads out.
  fs::remove(dir_ / "shard-2");
  fs::create_symlink(outside, dir_ / "between");
  fs::create_symlink("between", dir_ / "shard-2");
  ExpectCheckpointError(ErrorCode::kCorrupt, {Path("shard-2"), "link"});
  fs::remove(outside);
  ExpectCheckpointError(ErrorCode::kNotFound, {Path("shard-2"), "missing"});
  // A link to a file of the same folder is fine.
  fs::remove(dir_ / "shard-2");
  Shard("real", {"c"});
  fs::create_symlink("real", dir_ / "shard-2");
  EXPECT_TRUE(Checkpoint::Open(dir_.string()));
}

TEST_F(Checkpoints, WhatIsNoFileIsRefused) {
  ExpectCheckpointError(ErrorCode::kNotFound, {"neither"});
  ExpectError(Checkpoint::Open(Path("nothing")), ErrorCode::kNotFound, {"nothing"});
  WriteAll(dir_ / "file", "x");
  ExpectError(Checkpoint::Open(Path("file")), ErrorCode::kNotFound, {"file"});
  ExpectError(Checkpoint::Open(Path(std::string(300, 'x'))), ErrorCode::kNotFound, {});
  fs::create_directory(dir_ / "model.safetensors");
  ExpectCheckpointError(ErrorCode::kIo, {"model.safetensors", "folder"});
  Make();
  fs::remove(dir_ / "shard-1");
  ASSERT_EQ(mkfifo(Path("shard-1").c_str(), 0600), 0);
  ExpectCheckpointError(ErrorCode::kIo, {"shard-1", "pipe"});
  fs::remove(dir_ / "model.safetensors.index.json");
  ASSERT_EQ(mkfifo(Path("model.safetensors.index.json").c_str(), 0600), 0);
  ExpectCheckpointError(ErrorCode::kIo, {"index.json", "pipe"});
}

class ShardedWriters : public FolderTest {};

TEST_F(ShardedWriters, CutsIntoShardsThatAreRead) {
  const std::vector<TensorEntry> entries = {{"a", Dtype::kU8, {5}, 0, 0},
                                            {"b", Dtype::kU8, {5}, 0, 0},
                                            {"big", Dtype::kF32, {7}, 0, 0},
                                            {"c", Dtype::kU8, {0}, 0, 0},
                                            {"d", Dtype::kBF16, {3}, 0, 0}};
  const std::string data(28, 'x');
  for (const uint64_t limit : {uint64_t{1}, uint64_t{10}, uint64_t{100}}) {
    const std::string folder = Path(std::to_string(limit));
    fs::create_directory(folder);
    auto writer = ShardedWriter::Create(folder, entries, {{"format", "pt"}}, limit);
    ASSERT_TRUE(writer);
    EXPECT_EQ(writer->tensor_bytes(), 44u);
    for (size_t i = entries.size(); i-- > 0;) {
      const auto size = static_cast<size_t>(NumElements(entries[i].shape)) * SizeOf(entries[i].dtype);
      ASSERT_TRUE(writer->WriteTensor(i, std::as_bytes(std::span(data.data(), size))));
    }
    EXPECT_FALSE(Checkpoint::Open(folder));  // until it is whole
    ASSERT_TRUE(writer->Commit());
    const auto read = Checkpoint::Open(folder);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->places().size(), entries.size());
    EXPECT_EQ(read->shards().size(), limit == 100 ? 1u : limit == 10 ? 3u : 5u);
    EXPECT_EQ(fs::exists(folder + "/model.safetensors"), limit == 100);
    for (const SafetensorsFile& shard : read->shards()) EXPECT_EQ(shard.metadata(), (Metadata{{"format", "pt"}}));
    if (limit == 100) continue;
    EXPECT_EQ(IndexFile::Read(folder + "/model.safetensors.index.json")->total_size(), 44u);
  }
}

TEST_F(ShardedWriters, FailuresLeaveNothing) {
  ExpectError(ShardedWriter::Create(dir_.string(), {{"a", Dtype::kF32, {int64_t{1} << 62}, 0, 0}}, {}),
              ErrorCode::kCorrupt, {"'a'"});
  ExpectError(ShardedWriter::Create(Path("no"), {{"a", Dtype::kF32, {1}, 0, 0}}, {}), ErrorCode::kIo, {"no"});
  {
    auto writer = ShardedWriter::Create(dir_.string(), {{"a", Dtype::kU8, {10000}, 0, 0}}, {});
    ASSERT_TRUE(writer);
    const std::string data(10000, 'x');
    const FullDisk full(4096);
    ExpectError(writer->WriteTensor(0, std::as_bytes(std::span(data.data(), data.size()))), ErrorCode::kIo,
                {"can't be written"});
  }
  EXPECT_EQ(Entries(), 0u);
}

}  // namespace
}  // namespace kestrel
