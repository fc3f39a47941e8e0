#include "kestrel/text/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace kestrel {
namespace {

using Part = BpeScratch::Part;
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
// Up to here a scan over an array beats the heap: it fits in a few cache lines. Words are 5 to 15 bytes.
constexpr size_t kScanLimit = 48;

class Merger {
 public:
  Merger(const ByteTable& vocabulary, size_t max_token_bytes, std::string_view piece)
      : vocabulary_(vocabulary), max_token_bytes_(max_token_bytes), piece_(piece) {}

  int32_t Rank(size_t begin, size_t length) const {
    if (length > max_token_bytes_) return kNoRank;
    const int32_t id = vocabulary_.Find(piece_.substr(begin, length));
    return id < 0 ? kNoRank : id;
  }

  // n^2 in the length, for short pieces: begins[i] and pair ranks in two small arrays.
  void Scan(std::vector<int32_t>& ids) const {
    uint32_t begin[kScanLimit + 1];
    int32_t rank[kScanLimit + 1];
    size_t n = piece_.size();
    for (size_t i = 0; i <= n; ++i) begin[i] = static_cast<uint32_t>(i);
    for (size_t i = 0; i < n; ++i) rank[i] = i + 1 < n ? Rank(i, 2) : kNoRank;
    while (n > 1) {
      const size_t at = static_cast<size_t>(std::min_element(rank, rank + n - 1) - rank);
      if (rank[at] == kNoRank) break;
      std::copy(begin + at + 2, begin + n + 1, begin + at + 1);
      std::copy(rank + at + 2, rank + n, rank + at + 1);
      --n;
      const auto pair_rank = [&](size_t i) { return i + 1 < n ? Rank(begin[i], begin[i + 2] - begin[i]) : kNoRank; };
      rank[at] = pair_rank(at);
      if (at > 0) rank[at - 1] = pair_rank(at - 1);
    }
    for (size_t i = 0; i < n; ++i) ids.push_back(Rank(begin[i], begin[i + 1] - begin[i]));
  }

  // A heap of pairs; an entry whose part has died or whose rank has changed since is skipped when it comes up.
  void Heap(BpeScratch& scratch, std::vector<int32_t>& ids) const {
    auto& parts = scratch.parts;
    auto& heap = scratch.heap;
    parts.resize(piece_.size());
    heap.clear();
    const auto last = static_cast<int32_t>(piece_.size()) - 1;
    for (int32_t i = 0; i <= last; ++i) {
      const int32_t rank = i < last ? Rank(static_cast<size_t>(i), 2) : kNoRank;
      parts[i] = {static_cast<uint32_t>(i), 1, i < last ? i + 1 : -1, i - 1, rank};
      if (rank != kNoRank) heap.push_back(Entry(rank, i));
    }
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      const uint64_t top = heap.back();
      heap.pop_back();
      const auto at = static_cast<int32_t>(top & 0xffffffffu);
      if (parts[at].length == 0 || parts[at].pair_rank != static_cast<int32_t>(top >> 32)) continue;
      Join(at, scratch);
      Update(at, scratch);
      if (parts[at].previous >= 0) Update(parts[at].previous, scratch);
    }
    for (int32_t i = 0; i >= 0; i = parts[i].next) ids.push_back(Rank(parts[i].begin, parts[i].length));
  }

 private:
  static uint64_t Entry(int32_t rank, int32_t part) {
    return static_cast<uint64_t>(static_cast<uint32_t>(rank)) << 32 | static_cast<uint32_t>(part);
  }

  static void Join(int32_t at, BpeScratch& scratch) {
    Part& part = scratch.parts[at];
    Part& gone = scratch.parts[part.next];
    part.length += gone.length;
    part.next = gone.next;
    gone.length = 0;
    if (part.next >= 0) scratch.parts[part.next].previous = at;
  }

  void Update(int32_t at, BpeScratch& scratch) const {
    Part& part = scratch.parts[at];
    part.pair_rank = part.next < 0 ? kNoRank : Rank(part.begin, part.length + scratch.parts[part.next].length);
    if (part.pair_rank == kNoRank) return;
    scratch.heap.push_back(Entry(part.pair_rank, at));
    std::push_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>());
  }

  const ByteTable& vocabulary_;
  size_t max_token_bytes_;
  std::string_view piece_;
};

}  // namespace

void AppendBpe(const ByteTable& vocabulary, size_t max_token_bytes, std::string_view piece, BpeScratch& scratch,
               std::vector<int32_t>& ids) {
  if (piece.empty()) return;
  const Merger merger(vocabulary, max_token_bytes, piece);
  if (const int32_t id = merger.Rank(0, piece.size()); id != kNoRank) {
    ids.push_back(id);
  } else if (piece.size() <= kScanLimit) {
    merger.Scan(ids);
  } else {
    merger.Heap(scratch, ids);
  }
}

}  // namespace kestrel
