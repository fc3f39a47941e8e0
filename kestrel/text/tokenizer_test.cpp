// The tokenizer against the reference's own output (testdata/, see tools/make_tiny_vocabulary.py), properties on random
// bytes, and every way in which its two files can be wrong.
#include "kestrel/text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "kestrel/base/rng.h"
#include "kestrel/text/bpe.h"
#include "kestrel/text/incremental_decoder.h"
#include "kestrel/text/utf8.h"

namespace kestrel {
namespace {

const std::string kTestData = std::string(KESTREL_SOURCE_DIR) + "/kestrel/text/testdata";
const std::string kShared = std::string(KESTREL_SOURCE_DIR) + "/../shared/data";

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

const Tokenizer& Tiny() {
  static const Tokenizer tokenizer = [] {
    auto loaded = Tokenizer::Load(kTestData);
    if (!loaded) ADD_FAILURE() << loaded.error().message;
    return std::move(loaded).value();
  }();
  return tokenizer;
}

int RunCases(const Tokenizer& tokenizer, const std::string& file) {
  std::ifstream in(file);
  std::string line;
  int count = 0;
  while (std::getline(in, line)) {
    const auto test = nlohmann::json::parse(line);
    const auto text = test["text"].get<std::string>();
    const auto want = test["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.Encode(text, test.value("specials", false)), want) << line;
    EXPECT_EQ(tokenizer.Decode(want).value(), text) << line;
    ++count;
  }
  return count;
}

TEST(Tokenizer, GivesTheIdsOfTheReference) { EXPECT_GT(RunCases(Tiny(), kTestData + "/cases.jsonl"), 200); }

// A small vocabulary has few merges over a wrong border, so the borders have a test of their own.
TEST(Splitter, CutsWhereTheReferenceDoes) {
  std::ifstream in(kTestData + "/cases.jsonl");
  const Splitter splitter;
  int count = 0;
  for (std::string line; std::getline(in, line);) {
    const auto test = nlohmann::json::parse(line);
    if (!test.contains("pieces")) continue;
    const auto text = test["text"].get<std::string>();
    std::vector<size_t> got;
    for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(got.back())) {
      got.push_back(splitter.FirstLength(rest));
    }
    EXPECT_EQ(got, test["pieces"].get<std::vector<size_t>>()) << line;
    ++count;
  }
  EXPECT_GT(count, 200);
}

TEST(Tokenizer, GivesThePublishedIdsOfK3) {
  auto k3 = Tokenizer::Load(kShared + "/k3");
  if (!k3) GTEST_SKIP() << k3.error().message;
  EXPECT_EQ(k3->vocab_size(), 163840);
  EXPECT_GT(RunCases(*k3, kTestData + "/k3_cases.jsonl"), 40);
  EXPECT_EQ(k3->SpecialId("<|end_of_msg|>"), 163586);
  EXPECT_EQ(k3->SpecialId("<|reserved_token_163592|>"), 163592);
  EXPECT_EQ(k3->SpecialId("<|im_end|>"), std::nullopt);  // a K2 name of the same id
}

TEST(Tokenizer, SpecialsOfKimiLinear) {
  const std::string model = ReadAll(kShared + "/k3/tiktoken.model");  // one vocabulary for both
  const std::string config = ReadAll(kShared + "/kimi-linear/tokenizer_config.json");
  if (model.empty() || config.empty()) GTEST_SKIP() << "no shared data";
  auto linear = Tokenizer::Parse(model, config, "kimi-linear");
  ASSERT_TRUE(linear) << linear.error().message;
  EXPECT_EQ(linear->SpecialId("<|im_end|>"), 163586);
  EXPECT_EQ(linear->SpecialId("<|open|>"), std::nullopt);
  const std::vector<int32_t> want = {163588, 163606, 163607, 163586};
  EXPECT_EQ(linear->Encode("<|im_assistant|><think></think><|im_end|>", true), want);
}

TEST(Tokenizer, SpecialSlots) {
  const Tokenizer& t = Tiny();
  const int32_t base = t.base_size();
  EXPECT_EQ(t.vocab_size(), base + 256);
  EXPECT_EQ(t.SpecialId("<|open|>"), base + 3);
  EXPECT_EQ(t.TokenBytes(base + 8), fmt::format("<|reserved_token_{}|>", base + 8));
  EXPECT_FALSE(t.IsSpecial(base - 1));
  EXPECT_TRUE(t.IsSpecial(base));
  EXPECT_TRUE(t.IsSpecial(base + 255));
  EXPECT_FALSE(t.IsSpecial(base + 256));
  EXPECT_FALSE(t.IsSpecial(-1));
  EXPECT_FALSE(t.IsHidden(base + 3));  // <|open|>: a parser needs it in the text
  EXPECT_TRUE(t.IsHidden(base + 2));
}

TEST(Tokenizer, TypedMarkersStayText) {
  const Tokenizer& t = Tiny();
  for (int slot = 0; slot < 256; ++slot) {
    const std::string name(t.TokenBytes(t.base_size() + slot));
    for (const int32_t id : t.Encode("x" + name + " " + name, false)) EXPECT_FALSE(t.IsSpecial(id)) << name;
    EXPECT_EQ(t.Encode(name, true), std::vector<int32_t>{t.base_size() + slot});
  }
}

TEST(Tokenizer, SegmentsAreIndependent) {
  const Tokenizer& t = Tiny();
  const std::vector<Tokenizer::Segment> segments = {
      {"<|open|>", true}, {"the", false}, {" the<|sep|>", false}, {"", true}};
  std::vector<int32_t> want;
  for (const auto& s : segments) {
    const auto part = t.Encode(s.text, s.allow_special);
    want.insert(want.end(), part.begin(), part.end());
  }
  EXPECT_EQ(t.Encode(segments), want);
  // aa is a token, yet two segments "a" stay two tokens.
  const std::vector<Tokenizer::Segment> halves = {{"a", false}, {"a", false}};
  EXPECT_EQ(t.Encode(halves).size(), 2u);
  EXPECT_EQ(t.Encode("aa", false).size(), 1u);
}

TEST(Tokenizer, AnyBytesRoundTrip) {
  const Tokenizer& t = Tiny();
  Rng rng(1);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes(rng.Below(80), '\0');
    const uint64_t kind = rng.Below(3);  // any byte; bytes that begin or continue characters; mostly ASCII
    for (char& c : bytes) {
      const uint64_t any = rng.Below(256);
      c = static_cast<char>(kind == 0 ? any : kind == 1 ? 0x80 + any / 2 : any % 16 ? 32 + any % 90 : any);
    }
    EXPECT_EQ(t.Decode(t.Encode(bytes, false)).value(), bytes);
    EXPECT_EQ(t.Decode(t.Encode(bytes, true)).value(), bytes);
  }
}

TEST(Tokenizer, DecodeNamesTheBadId) {
  const Tokenizer& t = Tiny();
  for (const int32_t bad :
       {-1, t.vocab_size(), std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    const std::vector<int32_t> ids = {1, bad};
    const auto text = t.Decode(ids);
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().code, ErrorCode::kOutOfRange);
    EXPECT_NE(text.error().message.find(fmt::format("position 1: token id, got {}, want 0 to 895", bad)),
              std::string::npos)
        << text.error().message;
  }
}

// The slow definition: look at every pair, merge the lowest rank, the leftmost of equals.
std::vector<std::string> NaiveBpe(const ByteTable& table, const std::string& piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    int32_t best = -1;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const int32_t rank = table.Find(parts[i] + parts[i + 1]);
      if (rank >= 0 && (best < 0 || rank < best)) best = rank, at = i;
    }
    if (best < 0) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(Bpe, EveryLengthAgreesWithTheDefinition) {
  const Tokenizer& t = Tiny();
  ByteTable table;
  size_t longest = 0;
  for (int32_t i = 0; i < t.base_size(); ++i) {
    ASSERT_TRUE(table.Insert(t.TokenBytes(i)));
    longest = std::max(longest, t.TokenBytes(i).size());
  }
  Rng rng(2);
  BpeScratch scratch;
  for (size_t length = 1; length < 130; ++length) {  // the scan ends at 48
    for (int kind = 0; kind < 3; ++kind) {
      std::string piece(length, 'a');
      if (kind) {
        for (char& c : piece) c = kind == 1 ? "theinars "[rng.Below(9)] : static_cast<char>(rng.Below(256));
      }
      std::vector<int32_t> ids;
      AppendBpe(table, longest, piece, scratch, ids);
      std::vector<std::string> got;
      for (const int32_t id : ids) got.emplace_back(t.TokenBytes(id));
      const auto want = table.Find(piece) >= 0 ? std::vector<std::string>{piece} : NaiveBpe(table, piece);
      EXPECT_EQ(got, want) << piece;
    }
  }
}

TEST(Tokenizer, LongInputTakesLinearTime) {
  const Tokenizer& t = Tiny();
  ByteTable table;
  for (int32_t i = 0; i < t.base_size(); ++i) table.Insert(t.TokenBytes(i));
  const auto seconds = [](auto&& f) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  // One piece, straight to the merges: quadratic work would be 1.6e11 steps, minutes.
  BpeScratch scratch;
  std::vector<int32_t> ids;
  EXPECT_LT(seconds([&] { AppendBpe(table, 16, std::string(400'000, 'a'), scratch, ids); }), 20);
  for (const char* unit :
       {"<", "[", "!", " ", "\n", "A", "\u0301", "\xff", "\xe4", "'s", "aA\u0301", " \n", "1", "\u4e2d"}) {
    std::string text;
    while (text.size() < 400'000) text += unit;
    std::vector<int32_t> out;
    EXPECT_LT(seconds([&] { out = t.Encode(text, true); }), 20) << unit;
    EXPECT_EQ(t.Decode(out).value(), text);
  }
}

TEST(Tokenizer, CutsVeryLongRunsWhereTheReferenceDoes) {
  const Tokenizer& t = Tiny();
  const auto pieces = [&](const std::string& text) {
    const Splitter splitter;
    std::vector<size_t> out;
    size_t characters = 0;
    for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(out.back())) {
      out.push_back(splitter.FirstCut(rest, characters));
    }
    return out;
  };
  using Sizes = std::vector<size_t>;
  EXPECT_EQ(pieces(std::string(25'000, 'a')), Sizes{25'000});
  EXPECT_EQ(pieces(std::string(25'001, 'a')), (Sizes{25'000, 1}));
  EXPECT_EQ(pieces(std::string(50'001, ' ')), (Sizes{25'000, 25'000, 1}));
  EXPECT_EQ(pieces(std::string(20'000, 'a') + " " + std::string(25'001, 'b')), (Sizes{45'001, 1}));
  EXPECT_EQ(pieces(std::string(20'000, 'a') + "\x1c" + std::string(10'000, 'b')), Sizes{30'001});  // isspace, not \s
  std::string words;
  for (int i = 0; i < 200'001; ++i) words += "a ";
  EXPECT_EQ(pieces(words), (Sizes{400'000, 2}));
  // The block of 400 000 counts on over a cut of a run.
  EXPECT_EQ(pieces(std::string(30'000, 'a') + words), (Sizes{25'000, 375'000, 30'002}));
  std::string wide;
  for (int i = 0; i < 25'001; ++i) wide += "\u4e2d";
  EXPECT_EQ(pieces(wide), (Sizes{75'000, 3}));
  // aa is one token: 25 001 letters need the cut to come out as 12 500 pairs or so and a single a.
  const auto ids = t.Encode(std::string(25'001, 'a'), false);
  EXPECT_EQ(t.TokenBytes(ids.back()), "a");
}

TEST(Tokenizer, ThreadsShareOne) {
  const Tokenizer& t = Tiny();
  const std::string text = ReadAll(kTestData + "/cases.jsonl");
  const auto want = t.Encode(text, true);
  std::vector<std::thread> threads;
  std::vector<std::vector<int32_t>> got(4);
  for (auto& out : got) threads.emplace_back([&] { out = t.Encode(text, true); });
  for (auto& thread : threads) thread.join();
  for (const auto& out : got) EXPECT_EQ(out, want);
}

// --- incremental decoding ---

TEST(IncrementalDecoder, HoldsHalfCharacters) {
  const Tokenizer& t = Tiny();
  IncrementalDecoder decoder(t);
  const auto byte = [&](int b) { return t.Encode(std::string(1, static_cast<char>(b)), false)[0]; };
  EXPECT_EQ(decoder.Push(byte(0xf0)), "");
  EXPECT_EQ(decoder.Push(byte(0x9f)), "");
  EXPECT_EQ(decoder.Push(byte(0x8c)), "");
  EXPECT_EQ(decoder.Push(byte(0x8d)), "🌍");
  EXPECT_EQ(decoder.Push(byte(0xe4)), "");
  EXPECT_EQ(decoder.Push(byte('a')), "\ufffda");  // can't become a character any more
  EXPECT_EQ(decoder.Push(byte(0xff)), "\ufffd");
  EXPECT_EQ(decoder.Push(byte(0xe4)), "");
  EXPECT_EQ(decoder.Push(*t.SpecialId("<|sep|>")), "\ufffd<|sep|>");
  EXPECT_EQ(decoder.Push(byte(0xc3)), "");
  EXPECT_EQ(decoder.Finish(), "\ufffd");
  EXPECT_EQ(decoder.Finish(), "");
  EXPECT_EQ(decoder.Push(-1), "\ufffd");
  EXPECT_EQ(decoder.Push(t.vocab_size()), "\ufffd");
}

TEST(IncrementalDecoder, AlwaysWholeCharactersAndTheSameText) {
  const Tokenizer& t = Tiny();
  Rng rng(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids(rng.Below(30));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(t.vocab_size())));
    IncrementalDecoder decoder(t);
    std::string all;
    for (const int32_t id : ids) {
      const std::string part = decoder.Push(id);
      for (size_t at = 0; at < part.size();) {
        const Utf8Char c = DecodeUtf8(part, at);
        ASSERT_TRUE(c.valid);
        at += c.length;
      }
      all += part;
    }
    all += decoder.Finish();
    EXPECT_EQ(all, ReplaceInvalidUtf8(t.Decode(ids).value()));
  }
}

TEST(Utf8, IllFormedPartsAreMaximal) {
  // Unicode 15, table 3-8 and 3-11.
  EXPECT_EQ(ReplaceInvalidUtf8("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"),
            "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffdA");
  EXPECT_EQ(ReplaceInvalidUtf8("\xed\xa0\x80\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"),
            "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffdA\ufffd\ufffdB");
  EXPECT_EQ(ReplaceInvalidUtf8("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), "\ufffd\ufffd\ufffd\ufffdA");
  for (uint32_t c = 1; c < 0x110000; c += 37) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string s;
    AppendUtf8(c, s);
    EXPECT_EQ(DecodeUtf8(s, 0).code_point, c);
    EXPECT_EQ(DecodeUtf8(s, 0).length, s.size());
  }
}

// --- files that are wrong ---

struct Bad {
  const char* what;
  std::string model, config;
  const char* message;  // must be in the one line
};

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

std::string Join(const std::vector<std::string>& lines) {
  std::string out;
  for (const auto& line : lines) out += line + "\n";
  return out;
}

TEST(TokenizerFiles, EachFaultHasItsLine) {
  const std::string model = ReadAll(kTestData + "/tiktoken.model"),
                    config = ReadAll(kTestData + "/tokenizer_config.json");
  const auto with_line = [&](size_t number, const std::string& text) {
    auto lines = Lines(model);
    lines[number - 1] = text;
    return Join(lines);
  };
  const auto added = [](const std::string& entries) { return "{\"added_tokens_decoder\": {" + entries + "}}"; };
  auto gap = Lines(model);
  gap.erase(gap.begin() + 9);
  auto no_byte = Lines(model);
  no_byte.resize(200);
  const std::vector<Bad> all = {
      {"gap", Join(gap), config, "t/tiktoken.model:10: rank, got 10, want 9"},
      {"base64 letters", with_line(3, "I*== 2"), config, "t/tiktoken.model:3: got \"I*== 2\", want base64"},
      {"base64 length", with_line(3, "Iw= 2"), config, "model:3: got"},
      {"base64 spare bits", with_line(3, "Ix== 2"), config, "model:3: got"},
      {"base64 padding inside", with_line(3, "Iw==Iw== 2"), config, "model:3: got"},
      {"empty token", with_line(3, " 2"), config, "model:3: got"},
      {"no rank", with_line(3, "Iw=="), config, "model:3: got"},
      {"rank text", with_line(3, "Iw== two"), config, "model:3: rank, got two, want 2"},
      {"rank negative", with_line(3, "Iw== -2"), config, "model:3: rank, got -2"},
      {"rank huge", with_line(3, "Iw== 99999999999999999999999"), config, "model:3: rank, got 9999"},
      {"rank twice", with_line(3, "Iw== 1"), config, "model:3: rank, got 1, want 2"},
      {"trailing", with_line(3, "Iw== 2 x"), config, "model:3: rank, got 2 x"},
      {"duplicate token", with_line(3, "IQ== 2"), config, "model:3: token \"IQ==\" was given before, with rank 0"},
      {"missing byte", Join(no_byte), config, "is not a token"},
      {"empty", "", config, "single byte 0x00 is not a token"},
      {"binary", std::string("\0\1\2\xff\n", 5), config, "model:1: got \"????\""},
      {"not json", model, "{", "t/tokenizer_config.json: not a JSON object"},
      {"json array", model, "[]", "not a JSON object"},
      {"no decoder", model, "{}", "added_tokens_decoder"},
      {"decoder array", model, "{\"added_tokens_decoder\": []}", "added_tokens_decoder"},
      {"key", model, added("\"x\": {\"content\": \"a\"}"), "got key \"x\""},
      {"no content", model, added("\"640\": {}"), "added token 640: content"},
      {"entry", model, added("\"640\": 7"), "added token 640: content"},
      {"empty content", model, added("\"640\": {\"content\": \"\"}"), "added token 640: content"},
      {"base id", model, added("\"639\": {\"content\": \"a\"}"), "got 639, want 640 to 895; ids below are base tokens"},
      {"past the slots", model, added("\"896\": {\"content\": \"a\"}"), "got 896, want 640 to 895; there are 256"},
      {"huge id", model, added("\"99999999999999999999\": {\"content\": \"a\"}"), "want a token id"},
      {"same name", model, added("\"640\": {\"content\": \"a\"}, \"641\": {\"content\": \"a\"}"),
       "\"a\" names both id 640 and id 641"},
      {"same id", model, added("\"640\": {\"content\": \"a\"}, \"0640\": {\"content\": \"b\"}"),
       "id 640 is given twice"},
      {"reserved", model, added("\"640\": {\"content\": \"<|reserved_token_700|>\"}"), "names both id 640 and id 700"},
  };
  for (const Bad& bad : all) {
    const auto result = Tokenizer::Parse(bad.model, bad.config, "t");
    ASSERT_FALSE(result) << bad.what;
    EXPECT_NE(result.error().message.find(bad.message), std::string::npos)
        << bad.what << ": " << result.error().message;
    EXPECT_EQ(result.error().message.find('\n'), std::string::npos) << bad.what;
  }
  EXPECT_TRUE(Tokenizer::Parse(model, config, "t"));
  std::string windows;
  for (const auto& line : Lines(model)) windows += line + "\r\n";
  EXPECT_TRUE(Tokenizer::Parse(windows, added(""), "t"));
}

TEST(TokenizerFiles, MissingFolder) {
  for (const char* folder : {"/nonexistent", "/dev/null"}) {
    const auto result = Tokenizer::Load(folder);
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("tiktoken.model"), std::string::npos);
  }
}

}  // namespace
}  // namespace kestrel
