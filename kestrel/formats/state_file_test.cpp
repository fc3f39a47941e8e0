#include "kestrel/formats/state_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kestrel/formats/test_support.h"

namespace kestrel {
namespace {

using namespace formats_test;

std::span<const std::byte> Bytes(const std::string& s) { return std::as_bytes(std::span(s.data(), s.size())); }
std::string Text(std::span<const std::byte> b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }

template <class T>
void Put(std::string& bytes, size_t at, T x) {
  std::memcpy(bytes.data() + at, &x, sizeof x);
}
// A file whose checksum fits, so that what stands before it is judged.
std::string Sealed(std::string bytes) {
  Put(bytes, bytes.size() - 8, static_cast<uint64_t>(XXH64(bytes.data(), bytes.size() - 8, 0)));
  return bytes;
}

class StateFiles : public FolderTest {
 protected:
  // "position" of 8 bytes, "empty" of none, "kda" of 100.
  std::string Make() const {
    const std::string position(8, '\x07'), kda(100, 'k');
    const StateSection sections[] = {{"position", Bytes(position)}, {"empty", {}}, {"kda", Bytes(kda)}};
    EXPECT_TRUE(WriteStateFile(Path("s"), 0x1234, sections));
    return ReadAll(Path("s"));
  }
};

TEST_F(StateFiles, WhatIsWrittenIsRead) {
  Make();
  auto read = StateFile::Read(Path("s"));
  ASSERT_TRUE(read) << read.error().message;
  const StateFile file = std::move(*read);
  EXPECT_EQ(file.fingerprint(), 0x1234u);
  EXPECT_EQ(file.sections(), 3u);
  EXPECT_EQ(Text(file.Find("position").value()), std::string(8, '\x07'));
  EXPECT_EQ(file.Find("empty").value().size(), 0u);
  EXPECT_EQ(Text(file.Find("kda").value()), std::string(100, 'k'));
  EXPECT_FALSE(file.Find("kd"));
  EXPECT_EQ(Entries(), 1u);
  ASSERT_TRUE(WriteStateFile(Path("none"), 1, {}));
  EXPECT_EQ(StateFile::Read(Path("none")).value().sections(), 0u);
}

TEST_F(StateFiles, EveryTruncationIsRefused) {
  const std::string whole = Make();
  for (size_t n = 0; n < whole.size(); ++n) {
    const std::string cut = whole.substr(0, n);
    const auto parsed = StateFile::Parse(Bytes(cut), "s");
    ASSERT_FALSE(parsed) << n;
    ExpectError(parsed, ErrorCode::kCorrupt, {"[formats.state] s: "});
  }
  const std::string longer = whole + "x";
  EXPECT_FALSE(StateFile::Parse(Bytes(longer), "s"));
}

TEST_F(StateFiles, EveryFlippedBitIsRefused) {
  std::string bytes = Make();
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(StateFile::Parse(Bytes(bytes), "s")) << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
  }
  EXPECT_TRUE(StateFile::Parse(Bytes(bytes), "s"));
}

// Under a checksum that fits: the checksum guards against accidents, the checks against everything else.
TEST_F(StateFiles, SizesAreCheckedEvenWhereTheChecksumFits) {
  const std::string whole = Make();
  const auto changed = [&](size_t at, auto x) {
    std::string bytes = whole;
    Put(bytes, at, x);
    return Sealed(bytes);
  };
  const auto expect = [&](const std::string& bytes, ErrorCode code, std::initializer_list<std::string_view> words) {
    ExpectError(StateFile::Parse(Bytes(bytes), "s"), code, words);
  };
  expect(changed(0, 'k'), ErrorCode::kCorrupt, {"do not begin as"});
  expect(changed(8, uint32_t{2}), ErrorCode::kUnsupported, {"version", "got 2", "want 1"});
  for (const uint32_t count : {0u, 2u, 4u, ~0u}) expect(changed(12, count), ErrorCode::kCorrupt, {});
  for (const uint64_t n : {uint64_t{9}, uint64_t{257}, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    expect(changed(24, n), ErrorCode::kCorrupt, {});  // length of the first name
    expect(changed(32, n), ErrorCode::kCorrupt, {});  // bytes of the first section
  }
  std::string twice;
  {
    const StateSection sections[] = {{"a", {}}, {"a", {}}};
    ASSERT_TRUE(WriteStateFile(Path("twice"), 1, sections));
  }
  ExpectError(StateFile::Read(Path("twice")), ErrorCode::kCorrupt, {"section 1", "name of one before"});
}

TEST_F(StateFiles, OnlyRegularFilesAreRead) {
  ExpectError(StateFile::Read(Path("nothing")), ErrorCode::kNotFound, {"nothing"});
  ExpectError(StateFile::Read(dir_.string()), ErrorCode::kIo, {"folder"});
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  ExpectError(StateFile::Read(Path("pipe")), ErrorCode::kIo, {"pipe"});
  // A terabyte of nothing, alone and behind a good beginning: refused without reading or allocating it.
  WriteAll(dir_ / "zeros", "");
  fs::resize_file(dir_ / "zeros", uintmax_t{1} << 40);
  ExpectError(StateFile::Read(Path("zeros")), ErrorCode::kCorrupt, {"do not begin as"});
  Make();
  fs::resize_file(dir_ / "s", uintmax_t{1} << 40);
  ExpectError(StateFile::Read(Path("s")), ErrorCode::kCorrupt, {"after the last section"});
}

TEST_F(StateFiles, AFullDiskLeavesTheOldState) {
  const std::string old = Make(), large(10'000, 'x');
  const StateSection sections[] = {{"a", Bytes(large)}};
  {
    const FullDisk full(4096);
    ExpectError(WriteStateFile(Path("s"), 1, sections), ErrorCode::kIo, {Path("s"), "can't be written"});
  }
  EXPECT_EQ(ReadAll(Path("s")), old);
  EXPECT_EQ(Entries(), 1u);
}

}  // namespace
}  // namespace kestrel
