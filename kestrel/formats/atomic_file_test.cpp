#include "kestrel/formats/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "kestrel/formats/output_folder.h"
#include "kestrel/formats/test_support.h"

namespace kestrel {
namespace {

using namespace formats_test;

class AtomicFiles : public FolderTest {};

TEST_F(AtomicFiles, AppearsWholeAndOnlyOnCommit) {
  WriteAll(dir_ / "f", "old");
  {
    auto file = AtomicFile::Create(Path("f"));
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->Write("ne"));
    ASSERT_TRUE(file->WriteZeros(5000));
    ASSERT_TRUE(file->Write("w"));
    ASSERT_TRUE(file->WriteAt(1, std::as_bytes(std::span("X", 1))));
    EXPECT_EQ(ReadAll(dir_ / "f"), "old");
    AtomicFile moved = std::move(*file);
    ASSERT_TRUE(moved.Commit());
  }
  EXPECT_EQ(ReadAll(dir_ / "f"), "nX" + std::string(5000, '\0') + "w");
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(AtomicFiles, WithoutCommitTheOldFileStays) {
  WriteAll(dir_ / "f", "old");
  {
    auto file = AtomicFile::Create(Path("f"));
    ASSERT_TRUE(file && file->Write("new"));
    EXPECT_EQ(Entries(), 2u);
  }
  EXPECT_EQ(ReadAll(dir_ / "f"), "old");
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(AtomicFiles, AFullDiskIsAnErrorAndLeavesTheOldFile) {
  WriteAll(dir_ / "f", "old");
  {
    const FullDisk full(4096);
    ExpectError(WriteTextFile(Path("f"), std::string(10'000, 'x')), ErrorCode::kIo,
                {Path("f"), "bytes at", "can't be written"});
    auto file = AtomicFile::Create(Path("g"));
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->WriteZeros(4096));
    EXPECT_FALSE(file->WriteZeros(1));
  }
  EXPECT_EQ(ReadAll(dir_ / "f"), "old");
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(AtomicFiles, PlacesThatTakeNoFileAreRefused) {
  ExpectError(WriteTextFile(Path("no/f"), "x"), ErrorCode::kIo, {"no/f", "No such file"});
  ExpectError(WriteTextFile(dir_.string(), "x"), ErrorCode::kIo, {"no regular file"});
  ExpectError(WriteTextFile("/dev/full", "x"), ErrorCode::kIo, {"/dev/full"});
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  ExpectError(WriteTextFile(Path("pipe"), "x"), ErrorCode::kIo, {"pipe"});
  ExpectError(WriteTextFile("", "x"), ErrorCode::kIo, {});
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(AtomicFiles, WholeFilesAreReadUpToALimit) {
  const std::string text("a\0b\nc", 5);
  ASSERT_TRUE(WriteTextFile(Path("f"), text));
  EXPECT_EQ(ReadWholeFile(Path("f"), 5).value(), text);
  ExpectError(ReadWholeFile(Path("f"), 4), ErrorCode::kCorrupt, {"got 5 bytes", "at most 4"});
  ASSERT_TRUE(WriteTextFile(Path("empty"), ""));
  EXPECT_EQ(ReadWholeFile(Path("empty"), 0).value(), "");
  ExpectError(ReadWholeFile(Path("nothing"), 5), ErrorCode::kNotFound, {Path("nothing")});
  ExpectError(ReadWholeFile(dir_.string(), 5), ErrorCode::kIo, {"folder"});
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  ExpectError(ReadWholeFile(Path("pipe"), 5), ErrorCode::kIo, {"pipe"});
}

class OutputFolders : public FolderTest {};

TEST_F(OutputFolders, AppearsWholeAndOnlyOnCommit) {
  for (const char* name : {"new", "slash/", "empty"}) {
    if (std::string_view(name) == "empty") fs::create_directory(dir_ / name);
    auto out = OutputFolder::Create(Path(name));
    ASSERT_TRUE(out) << out.error().message;
    ASSERT_TRUE(WriteTextFile(out->Path("config.json"), "{}"));
    EXPECT_FALSE(fs::exists(dir_ / name / "config.json"));
    OutputFolder moved = std::move(*out);
    ASSERT_TRUE(moved.Commit());
    EXPECT_EQ(ReadAll(dir_ / name / "config.json"), "{}");
  }
  EXPECT_EQ(Entries(), 3u);
}

TEST_F(OutputFolders, WithoutCommitNothingStays) {
  {
    auto out = OutputFolder::Create(Path("new"));
    ASSERT_TRUE(out && WriteTextFile(out->Path("f"), "x"));
    EXPECT_EQ(Entries(), 1u);
  }
  EXPECT_EQ(Entries(), 0u);
}

TEST_F(OutputFolders, TakenPlacesAreRefusedAndLeftAlone) {
  WriteAll(dir_ / "file", "x");
  fs::create_directory(dir_ / "full");
  WriteAll(dir_ / "full/f", "x");
  fs::create_symlink("nowhere", dir_ / "link");
  for (const char* name : {"file", "full", "link"})
    ExpectError(OutputFolder::Create(Path(name)), ErrorCode::kInvalidArgument, {name, "free name or an empty folder"});
  ExpectError(OutputFolder::Create(""), ErrorCode::kInvalidArgument, {"new folder"});
  ExpectError(OutputFolder::Create("/"), ErrorCode::kInvalidArgument, {"new folder"});
  ExpectError(OutputFolder::Create(Path("no/such/place")), ErrorCode::kIo, {"no/such/place"});
  EXPECT_EQ(Entries(), 3u);
  EXPECT_EQ(ReadAll(dir_ / "full/f"), "x");
}

TEST_F(OutputFolders, APlaceTakenMeanwhileIsNotOverwritten) {
  auto out = OutputFolder::Create(Path("new"));
  ASSERT_TRUE(out);
  fs::create_directory(dir_ / "new");
  WriteAll(dir_ / "new/theirs", "x");
  ExpectError(out->Commit(), ErrorCode::kIo, {"new", "can't be put in its place"});
  EXPECT_EQ(ReadAll(dir_ / "new/theirs"), "x");
}

}  // namespace
}  // namespace kestrel
