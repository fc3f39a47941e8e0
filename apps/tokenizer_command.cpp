// `kestrel tokenizer encode|decode MODEL [--specials] [--json] (TEXT | --file F | --jsonl F)`: text to token ids and
// back, for a shell and for a program that reads lines of JSON.

#include <CLI/CLI.hpp>
#include <charconv>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/common.h"
#include "kestrel/text/incremental_decoder.h"
#include "kestrel/text/tokenizer.h"

namespace kestrel {
namespace {

using nlohmann::json;

struct Options {
  std::string model, text, file, jsonl;
  bool specials = false, as_json = false;
  bool encode = false;
};

// "1,2,3", "1 2 3" or "[1, 2, 3]".
Result<std::vector<int32_t>> ParseIdList(std::string_view text) {
  constexpr std::string_view kBetween = ", \t\r\n[]";
  std::vector<int32_t> ids;
  for (size_t at = 0; (at = text.find_first_not_of(kBetween, at)) != text.npos;) {
    const std::string_view word = text.substr(at, std::min(text.find_first_of(kBetween, at), text.size()) - at);
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size()) {
      return Err(ErrorCode::kInvalidArgument, "[apps.tokenizer] ids, got \"{}\", want numbers such as 1,2,3",
                 word.substr(0, 40));
    }
    ids.push_back(id);
    at += word.size();
  }
  return ids;
}

// JSON holds text only: bytes that are not UTF-8 become U+FFFD there (and stay as they are in plain output).
json Object(const std::string& text, const std::vector<int32_t>& ids) {
  return {{"text", ReplaceInvalidUtf8(text)}, {"ids", ids}};
}

// Every element must be an integer in int32; the vocabulary's own range is Decode's to check.
Result<std::vector<int32_t>> IdsOf(const json& line) {
  const auto found = line.find("ids");
  if (found == line.end() || !found->is_array()) {
    return Err(ErrorCode::kInvalidArgument, "want an object with \"ids\": [...]");
  }
  std::vector<int32_t> ids;
  for (const json& v : *found) {
    const bool fits = v.is_number_integer() && !(v.is_number_unsigned() && v.get<uint64_t>() > INT32_MAX) &&
                      v.get<int64_t>() >= INT32_MIN;
    if (!fits) return Err(ErrorCode::kInvalidArgument, "ids, got {}, want whole numbers", v.dump().substr(0, 40));
    ids.push_back(v.get<int32_t>());
  }
  return ids;
}

Result<json> ConvertLine(const Tokenizer& tokenizer, const Options& options, const std::string& line) {
  const json in = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!in.is_object()) return Err(ErrorCode::kInvalidArgument, "not a JSON object");
  if (options.encode) {
    const auto text = in.find("text");
    if (text == in.end() || !text->is_string()) {
      return Err(ErrorCode::kInvalidArgument, "want an object with \"text\": \"...\"");
    }
    const auto& bytes = text->get_ref<const std::string&>();
    return Object(bytes, tokenizer.Encode(bytes, options.specials));
  }
  KESTREL_ASSIGN_OR_RETURN(const auto ids, IdsOf(in));
  KESTREL_ASSIGN_OR_RETURN(const std::string text, tokenizer.Decode(ids));
  return Object(text, ids);
}

Status ConvertLines(const Tokenizer& tokenizer, const Options& options) {
  std::ifstream file;
  if (options.jsonl != "-") {
    file.open(options.jsonl, std::ios::binary);
    if (!file) return Err(ErrorCode::kNotFound, "[apps.tokenizer] {}: cannot be opened", options.jsonl);
  }
  std::istream& in = options.jsonl == "-" ? std::cin : file;
  size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const auto converted = ConvertLine(tokenizer, options, line);
    if (!converted) {
      return Err(converted.error().code, "[apps.tokenizer] {}:{}: {}", options.jsonl, number,
                 converted.error().message);
    }
    std::cout << converted->dump() << '\n';
  }
  if (in.bad()) return Err(ErrorCode::kIo, "[apps.tokenizer] {}: cannot be read", options.jsonl);
  return {};
}

Status ConvertOne(const Tokenizer& tokenizer, const Options& options) {
  std::string input = options.text;
  if (!options.file.empty()) {
    KESTREL_ASSIGN_OR_RETURN(input, ReadTextFile(options.file));
  }
  if (options.encode) {
    const auto ids = tokenizer.Encode(input, options.specials);
    std::cout << (options.as_json ? Object(input, ids).dump() : fmt::format("{}", fmt::join(ids, ","))) << '\n';
    return {};
  }
  KESTREL_ASSIGN_OR_RETURN(const auto ids, ParseIdList(input));
  KESTREL_ASSIGN_OR_RETURN(const std::string text, tokenizer.Decode(ids));
  std::cout << (options.as_json ? Object(text, ids).dump() : text);
  // A file gets the exact bytes; a line end is for the eye.
  if (options.as_json || options.file.empty()) std::cout << '\n';
  return {};
}

int Run(const Options& options) {
  const auto tokenizer = Tokenizer::Load(options.model);
  if (!tokenizer) return Fail(tokenizer.error());
  const Status done = options.jsonl.empty() ? ConvertOne(*tokenizer, options) : ConvertLines(*tokenizer, options);
  if (!done) return Fail(done.error());
  std::cout.flush();
  if (!std::cout) return Fail(Error{ErrorCode::kIo, "[apps.tokenizer] standard output: cannot be written"});
  return 0;
}

void AddDirection(CLI::App& parent, bool encode, int& exit_code) {
  auto options = std::make_shared<Options>();
  options->encode = encode;
  CLI::App* app = encode ? parent.add_subcommand("encode", "text to token ids")
                         : parent.add_subcommand("decode", "token ids to text, byte for byte; special tokens by name");
  app->add_option("MODEL", options->model, "folder with tiktoken.model and tokenizer_config.json")->required();
  auto* text = app->add_option("TEXT", options->text, encode ? "the text" : "ids, e.g. 1,2,3");
  auto* file = app->add_option(
      "-f,--file", options->file,
      encode ? "read the text from a file; - is standard input" : "read the ids from a file; - is standard input");
  auto* jsonl =
      app->add_option("--jsonl", options->jsonl,
                      encode ? "one {\"text\": ...} a line in, {\"text\", \"ids\"} out; - is standard input"
                             : "one {\"ids\": [...]} a line in, {\"text\", \"ids\"} out; - is standard input");
  app->add_flag("--specials", options->specials,
                encode ? "recognise special tokens in the text (never do that with text of a stranger)"
                       : "accepted for symmetry: decode always writes special tokens by name");
  app->add_flag("--json", options->as_json, "print one JSON object {\"text\", \"ids\"}");
  app->callback([options, text, file, jsonl, &exit_code] {
    if (text->empty() + file->empty() + jsonl->empty() != 2) {
      throw CLI::ValidationError("tokenizer", "give one of TEXT, --file and --jsonl");
    }
    exit_code = Run(*options);
  });
}

}  // namespace

void AddTokenizerCommand(CLI::App& root, int& exit_code) {
  CLI::App* app = root.add_subcommand("tokenizer", "turn text into token ids, or ids into text");
  app->require_subcommand(1);
  AddDirection(*app, true, exit_code);
  AddDirection(*app, false, exit_code);
}

}  // namespace kestrel
