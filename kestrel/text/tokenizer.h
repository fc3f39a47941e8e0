// The Kimi tokenizer: byte-level BPE over tiktoken.model, special tokens from tokenizer_config.json.
//
//   KESTREL_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load("models/k3"));
//   tokenizer.Encode("Hello world", false);                                 // {19180, 2695} with the K3 vocabulary
//   tokenizer.Encode(std::vector<Tokenizer::Segment>{{"<|open|>", true}, {user_text, false}});
//
// Base tokens are 0 to n-1, then 256 special slots; a slot that the config does not name is <|reserved_token_ID|>.
// Text of a user must never be encoded with allow_special: "<|open|>" typed by a user is five ordinary tokens.
// Any bytes encode, and decode to themselves: ill-formed UTF-8 is split as if it were U+FFFD. Const calls are
// thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kestrel/base/result.h"
#include "kestrel/text/byte_table.h"
#include "kestrel/text/splitter.h"

namespace kestrel {

class Tokenizer {
 public:
  static constexpr int kSpecialSlots = 256;

  // Reads folder/tiktoken.model and folder/tokenizer_config.json. Errors name file and line (or id).
  static Result<Tokenizer> Load(const std::string& folder);
  // `where` begins the messages, e.g. the folder.
  static Result<Tokenizer> Parse(std::string_view tiktoken_model, std::string_view tokenizer_config_json,
                                 std::string_view where);

  int32_t vocab_size() const { return base_size() + kSpecialSlots; }
  int32_t base_size() const { return static_cast<int32_t>(base_.size()); }
  std::optional<int32_t> SpecialId(std::string_view name) const;
  bool IsSpecial(int32_t id) const { return id >= base_size() && id < vocab_size(); }
  // The config's flag "special", also true of reserved slots. False for ordinary tokens and for the structural
  // <|open|>, <|close|>, <|sep|>, which a reader of the text must see.
  bool IsHidden(int32_t id) const { return IsSpecial(id) && hidden_[static_cast<size_t>(id - base_size())]; }
  // Bytes of a base token or name of a special one. id must be in [0, vocab_size()).
  std::string_view TokenBytes(int32_t id) const;

  struct Segment {
    std::string_view text;
    bool allow_special;
  };
  std::vector<int32_t> Encode(std::string_view text, bool allow_special) const;
  // Each segment on its own: merges never cross a border.
  std::vector<int32_t> Encode(std::span<const Segment> segments) const;
  // Exact bytes, special tokens by name. An id out of range is an error that names it.
  Result<std::string> Decode(std::span<const int32_t> ids) const;

 private:
  struct Work;
  Tokenizer() = default;
  static Result<ByteTable> ParseBase(std::string_view text, std::string_view where);
  Status ParseSpecials(std::string_view json, std::string_view where);
  void AppendSegment(const Segment& segment, Work& work) const;
  void AppendWithSpecials(std::string_view text, Work& work) const;
  void AppendOrdinary(std::string_view text, Work& work) const;
  // The longest special name at text[at], as an id; -1 where none begins there.
  int32_t SpecialAt(std::string_view text, size_t at) const;

  Splitter splitter_;
  ByteTable base_;      // [base_size()]
  ByteTable specials_;  // [kSpecialSlots], in order of id
  size_t max_token_bytes_ = 0;
  std::array<bool, kSpecialSlots> hidden_{};
  std::array<bool, 256> begins_special_{};
  std::vector<size_t> special_lengths_;  // distinct, longest first
};

}  // namespace kestrel
