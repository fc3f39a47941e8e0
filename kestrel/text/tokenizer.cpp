#include "kestrel/text/tokenizer.h"

#include "kestrel/base/check.h"
#include "kestrel/text/bpe.h"

namespace kestrel {

struct Tokenizer::Work {
  std::vector<int32_t> ids;
  BpeScratch scratch;
};

std::optional<int32_t> Tokenizer::SpecialId(std::string_view name) const {
  const int32_t slot = specials_.Find(name);
  if (slot < 0) return std::nullopt;
  return base_size() + slot;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  KESTREL_CHECK(id >= 0 && id < vocab_size());
  return id < base_size() ? base_.Key(id) : specials_.Key(id - base_size());
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool allow_special) const {
  const Segment segment{text, allow_special};
  return Encode(std::span(&segment, 1));
}

std::vector<int32_t> Tokenizer::Encode(std::span<const Segment> segments) const {
  Work work;
  size_t bytes = 0;
  for (const Segment& s : segments) bytes += s.text.size();
  work.ids.reserve(bytes / 3 + 8);  // English has 4.5 bytes a token, code 3
  for (const Segment& s : segments) AppendSegment(s, work);
  return std::move(work.ids);
}

// Long text is cut first, specials are looked for inside a piece: the order of the reference.
void Tokenizer::AppendSegment(const Segment& segment, Work& work) const {
  size_t characters = 0;
  for (std::string_view rest = segment.text; !rest.empty();) {
    const size_t cut = splitter_.FirstCut(rest, characters);
    if (segment.allow_special) {
      AppendWithSpecials(rest.substr(0, cut), work);
    } else {
      AppendOrdinary(rest.substr(0, cut), work);
    }
    rest.remove_prefix(cut);
  }
}

void Tokenizer::AppendWithSpecials(std::string_view text, Work& work) const {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const int32_t id = SpecialAt(text, at);
    if (id < 0) {
      ++at;
      continue;
    }
    AppendOrdinary(text.substr(begin, at - begin), work);
    work.ids.push_back(id);
    at += TokenBytes(id).size();
    begin = at;
  }
  AppendOrdinary(text.substr(begin), work);
}

int32_t Tokenizer::SpecialAt(std::string_view text, size_t at) const {
  if (!begins_special_[static_cast<uint8_t>(text[at])]) return -1;
  for (const size_t length : special_lengths_) {
    if (length > text.size() - at) continue;
    const int32_t slot = specials_.Find(text.substr(at, length));
    if (slot >= 0) return base_size() + slot;
  }
  return -1;
}

void Tokenizer::AppendOrdinary(std::string_view text, Work& work) const {
  while (!text.empty()) {
    const size_t length = splitter_.FirstLength(text);
    AppendBpe(base_, max_token_bytes_, text.substr(0, length), work.scratch, work.ids);
    text.remove_prefix(length);
  }
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string out;
  out.reserve(ids.size() * 4);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return Err(ErrorCode::kOutOfRange, "[text.decode] position {}: token id, got {}, want 0 to {}", i, ids[i],
                 vocab_size() - 1);
    }
    out += TokenBytes(ids[i]);
  }
  return out;
}

}  // namespace kestrel
