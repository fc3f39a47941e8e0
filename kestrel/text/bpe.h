// Byte-pair encoding of one pre-token: the whole piece where the vocabulary has it, else from single bytes, always
// merging the adjacent pair whose joined bytes have the lowest rank, the leftmost of equals. Rank and id are the same.
//
//   BpeScratch scratch;  std::vector<int32_t> ids;
//   AppendBpe(vocabulary, max_token_bytes, "hello", scratch, ids);
//
// n log n in the bytes of the piece (a heap over a linked list), so that 400 000 bytes without a break are no trap.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kestrel/text/byte_table.h"

namespace kestrel {

// Reused from piece to piece, so that encoding seldom allocates. One for each thread.
struct BpeScratch {
  struct Part {
    uint32_t begin, length;
    int32_t next, previous;  // -1 at the ends
    int32_t pair_rank;       // of this part joined with the next; kNoRank where there is no such token
  };
  std::vector<Part> parts;
  std::vector<uint64_t> heap;  // rank in the upper half, part in the lower: the least is the lowest, then leftmost
};

// `vocabulary` holds all 256 single bytes; no key is longer than max_token_bytes. piece.size() < 2^31.
void AppendBpe(const ByteTable& vocabulary, size_t max_token_bytes, std::string_view piece, BpeScratch& scratch,
               std::vector<int32_t>& ids);

}  // namespace kestrel
