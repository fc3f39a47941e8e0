// model.safetensors.index.json: which shard holds which tensor. The release names 497 220 tensors, so names are kept in
// one block, sorted, with eight bytes beside each: under 150 bytes a name while reading, the file's text included.
//
//   KESTREL_ASSIGN_OR_RETURN(const IndexFile index, IndexFile::Read(path));
//   for (size_t i = 0; i < index.size(); ++i) Use(index.name(i), index.shards()[index.shard(i)]);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kestrel/base/result.h"

namespace kestrel {

class IndexFile {
 public:
  static Result<IndexFile> Read(const std::string& path);
  // Errors begin with `where`. kCorrupt for duplicate names, an empty index, shards that are no plain file names.
  static Result<IndexFile> Parse(std::string_view json, std::string_view where);

  size_t size() const { return rows_.size(); }
  std::string_view name(size_t i) const { return std::string_view(names_).substr(rows_[i].begin, rows_[i].length); }
  int shard(size_t i) const { return rows_[i].shard; }
  std::optional<size_t> Find(std::string_view name) const;
  bool Contains(std::string_view name) const { return Find(name).has_value(); }
  const std::vector<std::string>& shards() const { return shards_; }
  uint64_t total_size() const { return total_size_; }  // as the metadata says; 0 where it says nothing

 private:
  friend class IndexReader;
  // mapped: json begins at a page, and its pages may be dropped once read.
  static Result<IndexFile> Parse(std::string_view json, std::string_view where, bool mapped);
  struct Row {
    uint32_t begin;
    uint16_t length, shard;
  };
  std::string names_;
  std::vector<Row> rows_;            // sorted by name
  std::vector<std::string> shards_;  // in order of first appearance
  uint64_t total_size_ = 0;
};

}  // namespace kestrel
