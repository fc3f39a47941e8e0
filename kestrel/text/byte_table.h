// A flat hash table from byte strings to ids: open addressing, 8 bytes a slot, keys in one pool.
//
//   ByteTable table(3);  table.Insert("a");  table.Insert("ab");
//   table.Find("ab") == 1;  table.Key(0) == "a";  table.Find("x") == -1;
//
// Ids are 0, 1, 2, ... in order of insertion. Find is const and thread-safe.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace kestrel {

class ByteTable {
 public:
  explicit ByteTable(size_t expected_keys = 0) { Rehash(expected_keys); }

  // False, and nothing done, where the key is there already.
  bool Insert(std::string_view key) {
    if (2 * (size() + 1) > slots_.size()) Rehash(2 * (size() + 1));
    const uint64_t hash = Hash(key);
    const size_t at = Probe(key, hash);
    if (slots_[at].id >= 0) return false;
    slots_[at] = {static_cast<uint32_t>(hash >> 32), static_cast<int32_t>(size())};
    pool_ += key;
    ends_.push_back(pool_.size());
    return true;
  }

  int32_t Find(std::string_view key) const { return slots_[Probe(key, Hash(key))].id; }

  std::string_view Key(int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return std::string_view(pool_).substr(ends_[i], ends_[i + 1] - ends_[i]);
  }
  size_t size() const { return ends_.size() - 1; }

 private:
  struct Slot {
    uint32_t tag = 0;  // the hash's upper half: most wrong keys are told apart without touching the pool
    int32_t id = -1;
  };

  static uint64_t Mix(uint64_t a, uint64_t b) {
    a = (a ^ b) * 0x9e3779b97f4a7c15u;
    return a ^ (a >> 32);
  }
  static uint64_t Word(const char* p, size_t bytes) {
    uint64_t w = 0;
    std::memcpy(&w, p, bytes);
    return w;
  }
  // Not seeded: keys are a vocabulary that was read whole, so nobody can add colliding ones later.
  static uint64_t Hash(std::string_view key) {
    const char* p = key.data();
    size_t n = key.size();
    uint64_t h = n * 0xff51afd7ed558ccdu;
    for (; n > 8; p += 8, n -= 8) h = Mix(h, Word(p, 8));
    uint64_t tail = 0;
    if (n >= 4) {
      tail = Word(p, 4) | Word(p + n - 4, 4) << 32;
    } else if (n > 0) {
      tail = static_cast<uint8_t>(p[0]) | static_cast<uint64_t>(static_cast<uint8_t>(p[n / 2])) << 8 |
             static_cast<uint64_t>(static_cast<uint8_t>(p[n - 1])) << 16;
    }
    h = Mix(h, tail);
    return Mix(h, h >> 29);
  }

  // The slot of the key, or the empty slot where it would go.
  size_t Probe(std::string_view key, uint64_t hash) const {
    const size_t mask = slots_.size() - 1;
    for (size_t at = hash & mask;; at = (at + 1) & mask) {
      const Slot slot = slots_[at];
      if (slot.id < 0 || (slot.tag == static_cast<uint32_t>(hash >> 32) && Key(slot.id) == key)) return at;
    }
  }

  void Rehash(size_t keys) {
    size_t capacity = 16;
    while (capacity < 2 * keys + 2) capacity *= 2;
    slots_.assign(capacity, Slot{});
    for (size_t i = 0; i < size(); ++i) {
      const uint64_t hash = Hash(Key(static_cast<int32_t>(i)));
      slots_[Probe(Key(static_cast<int32_t>(i)), hash)] = {static_cast<uint32_t>(hash >> 32), static_cast<int32_t>(i)};
    }
  }

  std::vector<Slot> slots_;
  std::vector<size_t> ends_ = {0};  // key i is pool_[ends_[i], ends_[i + 1])
  std::string pool_;
};

}  // namespace kestrel
