#include "kestrel/formats/json.h"

#include <gtest/gtest.h>

#include "kestrel/base/clock.h"
#include "kestrel/formats/shown.h"
#include "kestrel/formats/test_support.h"

namespace kestrel {
namespace {

using formats_test::ExpectError;

TEST(Json, KeepsValuesAndTheirOrder) {
  const std::string text = R"({"z":[1,-2,3.5,true,null,"é\n"],"a":{"b":{}},"big":18446744073709551615})";
  const auto value = ParseStrictJson(text, "x.json");
  ASSERT_TRUE(value);
  EXPECT_EQ(value->dump(), text);
}

TEST(Json, DepthHasALimit) {
  const auto nested = [](int depth, char open, char close) {
    return std::string(depth, open) + std::string(depth, close);
  };
  EXPECT_TRUE(ParseStrictJson(nested(kMaxJsonDepth, '[', ']'), "x"));
  ExpectError(ParseStrictJson(nested(kMaxJsonDepth + 1, '[', ']'), "x"), ErrorCode::kCorrupt, {"x", "nesting", "64"});
  ExpectError(ParseStrictJson(nested(100'000, '[', ']'), "x"), ErrorCode::kCorrupt, {"nesting"});
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  ExpectError(ParseStrictJson(objects, "x"), ErrorCode::kCorrupt, {"nesting"});
  // Brackets inside a string are no nesting.
  EXPECT_TRUE(ParseStrictJson("[\"" + std::string(1000, '[') + "\\\"[\"]", "x"));
}

TEST(Json, WhatIsNotStrictIsRefused) {
  for (const char* bad : {"",
                          " ",
                          "{",
                          "{}x",
                          "{} {}",
                          "[1,]",
                          "{\"a\" 1}",
                          "NaN",
                          "[Infinity]",
                          "1e400",
                          "01",
                          "'a'",
                          "// c\n1",
                          "\"\x80\"",
                          "\"\xc0\xaf\"",
                          "\"\xed\xa0\x80\"",
                          "\"\\ud800\"",
                          "\"a\nb\"",
                          "tru",
                          "\"open",
                          "\xff\xfe"}) {
    ExpectError(ParseStrictJson(bad, "bad.json"), ErrorCode::kCorrupt, {"[formats.json] bad.json: "});
  }
}

TEST(Json, AKeyTwiceIsNamedAtAnyDepth) {
  ExpectError(ParseStrictJson(R"({"a":1,"b":2,"a":3})", "x"), ErrorCode::kCorrupt, {"'a'", "twice"});
  ExpectError(ParseStrictJson(R"([{"q":{"k":1,"\u006b":1}}])", "x"), ErrorCode::kCorrupt, {"'k'", "twice"});
  EXPECT_TRUE(ParseStrictJson(R"([{"a":1},{"a":{"a":1}}])", "x"));
}

// 300 000 members: a search among the keys before each one would take minutes.
TEST(Json, AWideObjectTakesLinearTime) {
  const auto seconds = [](int members) {
    std::string text = "{\"k\":0";
    for (int i = 0; i < members; ++i) text += ",\"" + std::to_string(i) + "\":0";
    const double start = NowSeconds();
    EXPECT_EQ(ParseStrictJson(text + "}", "x")->size(), static_cast<size_t>(members) + 1);
    return NowSeconds() - start;
  };
  // Ten times the members: a quadratic cost would be a hundred times the time.
  const double small = seconds(30'000), large = seconds(300'000);
  EXPECT_LT(large, 40 * small + 0.05);
}

TEST(Shown, IsOneShortPrintableLine) {
  EXPECT_EQ(Shown("plain é 中"), "plain é 中");
  EXPECT_EQ(Shown("a\nb\x1b[31m\x7f"), "a\\x0ab\\x1b[31m\\x7f");
  EXPECT_EQ(Shown("\x80 \xc3 \xe4\xb8"), "? ? ??");
  EXPECT_EQ(Shown("abcdef", 3), "abc...");
  EXPECT_EQ(Shown("ab中", 4), "ab...");  // no half character
  EXPECT_EQ(Shown(std::string(1 << 20, 'x')).size(), 203u);
  EXPECT_EQ(Shown(""), "");
}

}  // namespace
}  // namespace kestrel
