// Reading the two files of a tokenizer. Nothing is guessed: a vocabulary that is not whole is refused, with the line.
#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "kestrel/text/tokenizer.h"

namespace kestrel {
namespace {

using nlohmann::json;
constexpr size_t kMaxVocabulary = 1 << 24;
constexpr size_t kMaxTokenBytes = 1 << 16;

Result<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Err(ErrorCode::kNotFound, "[text.tokenizer] {}: cannot be opened; is this a model folder?", path);
  std::ostringstream out;
  out << in.rdbuf();
  if (in.bad() || out.fail()) return Err(ErrorCode::kIo, "[text.tokenizer] {}: cannot be read", path);
  return std::move(out).str();
}

constexpr std::array<int8_t, 256> kBase64 = [] {
  std::array<int8_t, 256> values{};
  values.fill(-1);
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kAlphabet.size(); ++i) values[static_cast<uint8_t>(kAlphabet[i])] = static_cast<int8_t>(i);
  return values;
}();

// Standard alphabet with padding, canonical (unused bits zero). False where it is not; `out` is overwritten.
bool DecodeBase64(std::string_view in, std::string& out) {
  out.clear();
  if (in.empty() || in.size() % 4 != 0) return false;
  const size_t padding = in.ends_with("==") ? 2 : in.ends_with("=") ? 1 : 0;
  for (size_t i = 0; i < in.size(); i += 4) {
    const size_t absent = i + 4 == in.size() ? padding : 0;
    uint32_t word = 0;
    for (size_t k = 0; k < 4; ++k) {
      const int8_t v = k < 4 - absent ? kBase64[static_cast<uint8_t>(in[i + k])] : int8_t{0};
      if (v < 0) return false;
      word = word << 6 | static_cast<uint32_t>(v);
    }
    if (absent && word & ((1u << 8 * absent) - 1)) return false;
    for (size_t k = 0; k < 3 - absent; ++k) out += static_cast<char>(word >> (16 - 8 * k));
  }
  return true;
}

// What a message shows of bytes that may be anything: at most 24, others as '?'.
std::string Shown(std::string_view bytes) {
  std::string out(bytes.substr(0, 24));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return out + (bytes.size() > 24 ? "..." : "");
}

struct Special {
  int64_t id;
  std::string name;
  bool hidden;
};

// The entries of added_tokens_decoder, e.g. "163584": {"content": "[BOS]", "special": true}.
Result<std::vector<Special>> ReadAddedTokens(std::string_view text, std::string_view where) {
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return Err(ErrorCode::kCorrupt, "[text.tokenizer] {}: not a JSON object", where);
  const auto added = config.find("added_tokens_decoder");
  if (added == config.end() || !added->is_object()) {
    return Err(ErrorCode::kCorrupt, "[text.tokenizer] {}: added_tokens_decoder, want an object of special tokens by id",
               where);
  }
  std::vector<Special> out;
  for (const auto& [key, value] : added->items()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      return Err(ErrorCode::kCorrupt, "[text.tokenizer] {}: added_tokens_decoder, got key \"{}\", want a token id",
                 where, Shown(key));
    }
    const auto content = value.is_object() ? value.find("content") : value.end();
    if (!value.is_object() || content == value.end() || !content->is_string() ||
        content->get_ref<const std::string&>().empty()) {
      return Err(ErrorCode::kCorrupt, "[text.tokenizer] {}: added token {}: content, want a text that is not empty",
                 where, id);
    }
    const auto flag = value.find("special");
    out.push_back({id, content->get<std::string>(), flag == value.end() || !flag->is_boolean() || flag->get<bool>()});
  }
  return out;
}

}  // namespace

Result<Tokenizer> Tokenizer::Load(const std::string& folder) {
  KESTREL_ASSIGN_OR_RETURN(const std::string model, ReadFile(folder + "/tiktoken.model"));
  KESTREL_ASSIGN_OR_RETURN(const std::string config, ReadFile(folder + "/tokenizer_config.json"));
  return Parse(model, config, folder);
}

Result<Tokenizer> Tokenizer::Parse(std::string_view tiktoken_model, std::string_view tokenizer_config_json,
                                   std::string_view where) {
  Tokenizer tokenizer;
  KESTREL_ASSIGN_OR_RETURN(tokenizer.base_, ParseBase(tiktoken_model, fmt::format("{}/tiktoken.model", where)));
  for (int32_t i = 0; i < tokenizer.base_size(); ++i) {
    tokenizer.max_token_bytes_ = std::max(tokenizer.max_token_bytes_, tokenizer.base_.Key(i).size());
  }
  KESTREL_RETURN_IF_ERROR(
      tokenizer.ParseSpecials(tokenizer_config_json, fmt::format("{}/tokenizer_config.json", where)));
  return tokenizer;
}

// Lines "base64 rank": ranks 0, 1, 2, ... in order, each token once, all 256 single bytes among them.
Result<ByteTable> Tokenizer::ParseBase(std::string_view text, std::string_view where) {
  ByteTable table(text.size() / 16);
  std::string token;
  size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    ++number;
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    if (space == line.npos || !DecodeBase64(line.substr(0, space), token)) {
      return Err(ErrorCode::kCorrupt, "[text.tokenizer] {}:{}: got \"{}\", want base64, a space and a rank", where,
                 number, Shown(line));
    }
    if (token.size() > kMaxTokenBytes) {
      return Err(ErrorCode::kCorrupt, "[text.tokenizer] {}:{}: token length, got {} bytes, want at most {}", where,
                 number, token.size(), kMaxTokenBytes);
    }
    const std::string_view digits = line.substr(space + 1);
    size_t rank = 0;
    const auto [last, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error != std::errc() || last != digits.data() + digits.size() || rank != table.size()) {
      return Err(ErrorCode::kCorrupt, "[text.tokenizer] {}:{}: rank, got {}, want {}; ranks go up by one without gaps",
                 where, number, Shown(digits), table.size());
    }
    if (!table.Insert(token)) {
      return Err(ErrorCode::kCorrupt, "[text.tokenizer] {}:{}: token \"{}\" was given before, with rank {}", where,
                 number, Shown(line.substr(0, space)), table.Find(token));
    }
    if (table.size() > kMaxVocabulary) {
      return Err(ErrorCode::kCorrupt, "[text.tokenizer] {}:{}: more than {} tokens", where, number, kMaxVocabulary);
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    if (table.Find({&c, 1}) < 0) {
      return Err(ErrorCode::kCorrupt, "[text.tokenizer] {}:{}: end of file, single byte {:#04x} is not a token", where,
                 number, byte);
    }
  }
  return table;
}

Status Tokenizer::ParseSpecials(std::string_view text, std::string_view where) {
  KESTREL_ASSIGN_OR_RETURN(const std::vector<Special> specials, ReadAddedTokens(text, where));
  std::array<const Special*, kSpecialSlots> slots{};
  for (const Special& s : specials) {
    if (s.id < base_size() || s.id >= vocab_size()) {
      return Err(ErrorCode::kCorrupt, "[text.tokenizer] {}: id of \"{}\", got {}, want {} to {}; {}", where,
                 Shown(s.name), s.id, base_size(), vocab_size() - 1,
                 s.id < base_size() ? "ids below are base tokens" : "there are 256 special slots");
    }
    const Special*& slot = slots[static_cast<size_t>(s.id - base_size())];
    if (slot) return Err(ErrorCode::kCorrupt, "[text.tokenizer] {}: id {} is given twice", where, s.id);
    slot = &s;
  }
  std::set<size_t, std::greater<>> lengths;
  for (int i = 0; i < kSpecialSlots; ++i) {
    const int32_t id = base_size() + i;
    const Special* given = slots[static_cast<size_t>(i)];
    const std::string name = given ? given->name : fmt::format("<|reserved_token_{}|>", id);
    if (!specials_.Insert(name)) {
      return Err(ErrorCode::kCorrupt, "[text.tokenizer] {}: \"{}\" names both id {} and id {}", where, Shown(name),
                 base_size() + specials_.Find(name), id);
    }
    hidden_[static_cast<size_t>(i)] = !given || given->hidden;
    begins_special_[static_cast<uint8_t>(name[0])] = true;
    lengths.insert(name.size());
  }
  special_lengths_.assign(lengths.begin(), lengths.end());
  return {};
}

}  // namespace kestrel
