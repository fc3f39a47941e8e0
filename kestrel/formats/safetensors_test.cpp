#include "kestrel/formats/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <random>

#include "kestrel/formats/test_support.h"

namespace kestrel {
namespace {

using namespace formats_test;

Result<SafetensorsHeader> Parse(std::string_view header, size_t data_bytes) {
  const std::string file = FileBytes(header, data_bytes);
  return ParseSafetensorsHeader(std::as_bytes(std::span(file.data(), file.size())), file.size(), "f.safetensors");
}
void ExpectCorrupt(std::string_view header, size_t data_bytes, std::initializer_list<std::string_view> words) {
  SCOPED_TRACE(std::string(header.substr(0, 200)));
  const auto parsed = Parse(header, data_bytes);
  ExpectError(parsed, ErrorCode::kCorrupt, {"[formats.safetensors] f.safetensors: "});
  ExpectError(parsed, ErrorCode::kCorrupt, words);
}
std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& span) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + span + "}";
}

TEST(SafetensorsHeader, ReadsEntriesInTheOrderOfTheirData) {
  const auto h = Parse("{" + Entry("b", "BF16", "[2,3]", "[4,16]") + "," + Entry("a", "F32", "[]", "[0,4]") + "," +
                           Entry("none", "I64", "[3,0]", "[16,16]") + R"(,"__metadata__":{"format":"pt"}}  )",
                       16);
  ASSERT_TRUE(h) << h.error().message;
  ASSERT_EQ(h->tensors.size(), 3u);
  EXPECT_EQ(h->tensors[0].name, "a");
  EXPECT_EQ(h->tensors[0].shape, Shape{});
  EXPECT_EQ(h->tensors[1].shape, (Shape{2, 3}));
  EXPECT_EQ(h->tensors[1].dtype, Dtype::kBF16);
  EXPECT_EQ(h->tensors[1].begin, 4u);
  EXPECT_EQ(h->tensors[1].end, 16u);
  EXPECT_EQ(h->metadata, (Metadata{{"format", "pt"}}));
  EXPECT_TRUE(Parse("{}", 0));
}

TEST(SafetensorsHeader, LengthIsCheckedBeforeAByteIsRead) {
  for (const uint64_t length : {uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7, uint64_t{3}, kMaxHeaderBytes + 1}) {
    std::string file = FileBytes("{}", 0);
    std::memcpy(file.data(), &length, 8);
    // A file that claims to be large does not make the header one byte larger than what is there.
    for (const uint64_t claimed : {uint64_t{file.size()}, uint64_t{1} << 50}) {
      ExpectError(ParseSafetensorsHeader(std::as_bytes(std::span(file)), claimed, "f"), ErrorCode::kCorrupt,
                  {"header length", std::to_string(length), "at most"});
    }
  }
  for (size_t n = 0; n < 8; ++n) {
    const std::string file(n, '\0');
    ExpectError(ParseSafetensorsHeader(std::as_bytes(std::span(file)), n, "f"), ErrorCode::kCorrupt, {"at least 8"});
  }
}

TEST(SafetensorsHeader, WhatIsNoHeaderIsRefused) {
  for (const char* bad : {"", "x", "[]", "1", "null", "\"a\"", "{", "{}}", "{}\n{}", "{\"a\":1}", "{\"a\":[]}",
                          "{\"a\":null}", "{\"a\":\"F32\"}", "\xff\xfe{}"}) {
    ExpectCorrupt(bad, 0, {});
  }
  ExpectCorrupt("[1]", 0, {"want an object"});
  ExpectCorrupt("{\"a\":{}}", 0, {"'a'", "dtype, shape and data_offsets"});
  ExpectCorrupt(R"({"a":{"dtype":"F32","shape":[1]}})", 4, {"'a'", "got 2 keys"});
  ExpectCorrupt(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":1}})", 4, {"'a'", "'extra'"});
  ExpectCorrupt(R"({"a":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}})", 4, {"'dtype'", "twice"});
  ExpectCorrupt("{\"a\x80\":{}}", 0, {});
  ExpectCorrupt(std::string(100'000, '['), 0, {"got a list"});
  ExpectCorrupt("{\"a\":" + std::string(100'000, '['), 0, {"got a list"});
  ExpectCorrupt(R"({"a":{"shape":)" + std::string(100'000, '['), 0, {"shape", "got a list"});
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  ExpectCorrupt(objects, 0, {"'a'"});
}

TEST(SafetensorsHeader, MetadataMapsStringsToStrings) {
  for (const char* bad :
       {R"({"__metadata__":1})", R"({"__metadata__":["a"]})", R"({"__metadata__":{"a":1}})",
        R"({"__metadata__":{"a":null}})", R"({"__metadata__":{"a":{}}})", R"({"__metadata__":{"a":["b"]}})"}) {
    ExpectCorrupt(bad, 0, {"__metadata__"});
  }
  ExpectCorrupt(R"({"__metadata__":{"a":"1","a":"2"}})", 0, {"'a'", "twice"});
}

TEST(SafetensorsHeader, TypesAreKnownOnes) {
  for (const std::string dtype : {"F31", "f32", "", "BF16 ", "Q4\\n"})
    ExpectCorrupt("{" + Entry("a", dtype, "[1]", "[0,4]") + "}", 4, {"'a'", "dtype", "known"});
  ExpectCorrupt(R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4, {"dtype", "got 7"});
  ExpectCorrupt(R"({"a":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}})", 4, {"dtype", "got a list"});
}

TEST(SafetensorsHeader, ShapesNeverWrap) {
  // 4194305 * 4194305 * 211106198978564 is 4 modulo 2^64.
  ExpectCorrupt("{" + Entry("a", "U8", "[4194305,4194305,211106198978564]", "[0,4]") + "}", 4,
                {"'a'", "shape", "2^63"});
  ExpectCorrupt("{" + Entry("a", "F32", "[4611686018427387905]", "[0,4]") + "}", 4, {"shape", "2^63"});
  ExpectCorrupt("{" + Entry("a", "U8", "[9223372036854775807,2,0]", "[0,0]") + "}", 0, {"shape", "2^63"});
  ExpectCorrupt("{" + Entry("a", "U8", "[9223372036854775808]", "[0,4]") + "}", 4, {"shape", "9223372036854775808"});
  ExpectCorrupt("{" + Entry("a", "U8", "[18446744073709551616]", "[0,4]") + "}", 4, {"shape"});
  for (const std::string bad : {"[-1]", "[1.5]", "[1e30]", "[\"4\"]", "[null]", "[[4]]", "{}", "4", "null", "[true]"})
    ExpectCorrupt("{" + Entry("a", "U8", bad, "[0,4]") + "}", 4, {"'a'", "shape"});
  std::string ones = "[1";
  for (int i = 0; i < 16; ++i) ones += ",1";
  ExpectCorrupt("{" + Entry("a", "U8", ones + "]", "[0,1]") + "}", 1, {"more than 16 extents"});
}

TEST(SafetensorsHeader, SpansFitTheirShape) {
  for (const std::string bad :
       {"[0,3]", "[0,5]", "[4,0]", "[0,0]", "[0,18446744073709551615]", "[18446744073709551612,0]"})
    ExpectCorrupt("{" + Entry("a", "F32", "[1]", bad) + "}", 4, {"'a'", "data_offsets", "4 bytes"});
  for (const std::string bad :
       {"[-4,0]", "[0]", "[]", "[0,4,8]", "{}", "0", "[0,\"4\"]", "[0,4.0]", "[0,1e400]", "[[0],4]"})
    ExpectCorrupt("{" + Entry("a", "F32", "[1]", bad) + "}", 4, {});
}

TEST(SafetensorsHeader, SpansCoverTheDataOnce) {
  const std::string a = Entry("a", "U8", "[4]", "[0,4]");
  ExpectCorrupt("{" + a + "," + Entry("b", "U8", "[4]", "[2,6]") + "}", 6, {"'b'", "overlaps"});
  ExpectCorrupt("{" + a + "," + Entry("b", "U8", "[4]", "[0,4]") + "}", 4, {"overlaps"});
  ExpectCorrupt("{" + a + "," + Entry("b", "U8", "[4]", "[5,9]") + "}", 9, {"'b'", "hole"});
  ExpectCorrupt("{" + Entry("b", "U8", "[4]", "[1,5]") + "}", 5, {"'b'", "hole"});
  ExpectCorrupt("{" + a + "}", 3, {"got 3", "want 4", "truncated"});
  ExpectCorrupt("{" + a + "}", 0, {"truncated"});
  ExpectCorrupt("{" + a + "}", 5, {"got 5", "want 4", "trail"});
  ExpectCorrupt("{}", 1, {"trail"});
  // Out of range, past any file.
  ExpectCorrupt("{" + Entry("a", "U8", "[9000000000000000000]", "[0,9000000000000000000]") + "}", 4, {"truncated"});
  ExpectCorrupt("{" + Entry("a", "U8", "[1]", "[18446744073709551614,18446744073709551615]") + "}", 4, {"hole"});
}

TEST(SafetensorsHeader, NamesAreThereOnce) {
  ExpectCorrupt("{" + Entry("a", "U8", "[4]", "[0,4]") + "," + Entry("a", "U8", "[4]", "[4,8]") + "}", 8,
                {"'a'", "twice"});
  ExpectCorrupt("{" + Entry("a", "U8", "[0]", "[0,0]") + "," + Entry("\\u0061", "U8", "[0]", "[0,0]") + "}", 0,
                {"'a'", "twice"});
  // A name is shown in one short line whatever it is.
  ExpectCorrupt("{" + Entry("a\\nb\\u001b" + std::string(100'000, 'x'), "F7", "[1]", "[0,1]") + "}", 1,
                {"a\\x0ab\\x1bxxx"});
}

class Safetensors : public FolderTest {};

TEST_F(Safetensors, WhatIsWrittenIsReadForEveryType) {
  const std::array dtypes = {Dtype::kU8,  Dtype::kF64, Dtype::kF32,  Dtype::kF16,    Dtype::kBF16,
                             Dtype::kI64, Dtype::kI32, Dtype::kI16,  Dtype::kI8,     Dtype::kU64,
                             Dtype::kU32, Dtype::kU16, Dtype::kBool, Dtype::kF8E4M3, Dtype::kF8E5M2};
  const std::array<Shape, 4> shapes = {Shape{3}, Shape{}, Shape{5, 0}, Shape{2, 3, 5}};
  std::mt19937 random(1);
  std::vector<std::string> data;
  std::vector<TensorEntry> entries;
  for (const Dtype d : dtypes) {
    for (const Shape& s : shapes) {
      entries.push_back({"t\"é\n" + std::to_string(entries.size()), d, s, 0, 0});
      data.emplace_back(static_cast<size_t>(NumElements(s)) * SizeOf(d), '\0');
      for (char& c : data.back()) c = static_cast<char>(random());
    }
  }
  std::vector<TensorToWrite> tensors;
  for (size_t i = 0; i < data.size(); ++i)
    tensors.push_back({entries[i].name, entries[i].dtype, entries[i].shape,
                       std::as_bytes(std::span(data[i].data(), data[i].size()))});
  const Metadata metadata = {{"format", "pt"}, {"quote\"", "line\n"}};
  ASSERT_TRUE(WriteSafetensors(Path("f"), tensors, metadata));
  auto opened = SafetensorsFile::Open(Path("f"));
  ASSERT_TRUE(opened) << opened.error().message;
  const SafetensorsFile file = std::move(*opened);  // names and views survive a move
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), data.size());
  for (size_t i = 0; i < data.size(); ++i) {
    const TensorEntry* t = file.Find(entries[i].name);
    ASSERT_NE(t, nullptr);
    EXPECT_EQ(t->dtype, entries[i].dtype);
    EXPECT_EQ(t->shape, entries[i].shape);
    const auto bytes = file.View(*t).bytes;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), data[i]);
    // Readers go through pointers of the element type.
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % SizeOf(t->dtype), 0u) << i;
  }
  EXPECT_EQ(file.Find("t"), nullptr);
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(Safetensors, AnUnalignedFileOfAnotherWriterIsRead) {
  const std::string header = "{" + Entry("odd", "U8", "[1]", "[0,1]") + "," + Entry("f", "F32", "[1]", "[1,5]") + "}";
  const float want = 1.25f;
  std::string bytes = FileBytes(header, 5);
  std::memcpy(bytes.data() + bytes.size() - 4, &want, 4);
  WriteAll(dir_ / "f", bytes);
  const auto file = SafetensorsFile::Open(Path("f"));
  ASSERT_TRUE(file);
  float got = 0;
  std::memcpy(&got, file->View(*file->Find("f")).bytes.data(), 4);
  EXPECT_EQ(got, want);
}

TEST_F(Safetensors, PartsInAnyOrderMakeTheSameFile) {
  const std::string data = "abcdefgh";
  const auto bytes = std::as_bytes(std::span(data.data(), data.size()));
  const TensorToWrite whole[] = {{"x", Dtype::kU8, {8}, bytes}, {"y", Dtype::kU8, {8}, bytes}};
  ASSERT_TRUE(WriteSafetensors(Path("whole"), whole, {}));
  auto writer =
      SafetensorsWriter::Create(Path("parts"), {{"x", Dtype::kU8, {8}, 0, 0}, {"y", Dtype::kU8, {8}, 0, 0}}, {});
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->WriteTensor(1, bytes.subspan(3), 3));
  ASSERT_TRUE(writer->WriteTensor(0, bytes));
  ASSERT_TRUE(writer->WriteTensor(1, bytes.first(3)));
  ExpectError(writer->WriteTensor(0, bytes, 1), ErrorCode::kInvalidArgument, {"'x'", "8 bytes at 1"});
  ExpectError(writer->WriteTensor(0, bytes, ~uint64_t{0}), ErrorCode::kInvalidArgument, {"'x'"});
  EXPECT_FALSE(fs::exists(Path("parts")));  // until it is whole
  ASSERT_TRUE(writer->Commit());
  EXPECT_EQ(ReadAll(Path("whole")), ReadAll(Path("parts")));
}

TEST_F(Safetensors, AWriterThatFailsLeavesNothing) {
  const std::string data(4, 'x');
  const auto bytes = std::as_bytes(std::span(data.data(), data.size()));
  const TensorToWrite small[] = {{"x", Dtype::kF32, {2}, bytes}};
  ExpectError(WriteSafetensors(Path("f"), small, {}), ErrorCode::kInvalidArgument, {"'x'", "got 4 bytes", "want 8"});
  const TensorToWrite huge[] = {{"x", Dtype::kF32, {int64_t{1} << 40, int64_t{1} << 40}, bytes}};
  ExpectError(WriteSafetensors(Path("f"), huge, {}), ErrorCode::kCorrupt, {"'x'", "2^63"});
  const TensorToWrite fine[] = {{"x", Dtype::kF32, {1}, bytes}};
  ExpectError(WriteSafetensors(Path("no/folder/f"), fine, {}), ErrorCode::kIo, {"no/folder/f"});
  EXPECT_EQ(Entries(), 0u);
}

TEST_F(Safetensors, OnlyRegularFilesAreOpened) {
  ExpectError(SafetensorsFile::Open(Path("nothing")), ErrorCode::kNotFound, {Path("nothing")});
  ExpectError(SafetensorsFile::Open(Path("")), ErrorCode::kIo, {"folder", "readable file"});
  ExpectError(SafetensorsFile::Open("/dev/null"), ErrorCode::kIo, {"device"});
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  ExpectError(SafetensorsFile::Open(Path("pipe")), ErrorCode::kIo, {"pipe"});  // and does not wait for a writer
  fs::create_symlink("loop", dir_ / "loop");
  ExpectError(SafetensorsFile::Open(Path("loop")), ErrorCode::kIo, {Path("loop")});
  ExpectError(SafetensorsFile::Open(Path(std::string(5000, 'x')).substr(0, 900)), ErrorCode::kIo, {"too long"});
  WriteAll(dir_ / "empty", "");
  ExpectError(SafetensorsFile::Open(Path("empty")), ErrorCode::kCorrupt, {"got 0 bytes"});
}

TEST_F(Safetensors, EveryTruncationIsRefused) {
  const std::string whole = FileBytes("{" + Entry("a", "F32", "[4]", "[0,16]") + "}", 16);
  for (size_t n = 0; n < whole.size(); ++n) {
    WriteAll(dir_ / "f", whole.substr(0, n));
    ExpectError(SafetensorsFile::Open(Path("f")), ErrorCode::kCorrupt, {Path("f")});
  }
  WriteAll(dir_ / "f", whole);
  EXPECT_TRUE(SafetensorsFile::Open(Path("f")));
}

}  // namespace
}  // namespace kestrel
