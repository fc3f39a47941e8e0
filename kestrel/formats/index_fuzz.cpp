// libFuzzer: any text as an index. Whatever it is: no crash, an error of one line, and an accepted index finds each of
// its names, in shards that are plain names.
#include <algorithm>
#include <cstdlib>

#include "kestrel/formats/index_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kestrel;
  const auto require = [](bool condition) {
    if (!condition) std::abort();
  };
  const auto index = IndexFile::Parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!index) {
    const std::string& m = index.error().message;
    require(m.size() < 2000 && std::none_of(m.begin(), m.end(), [](unsigned char c) { return c < 0x20; }));
    return 0;
  }
  require(index->size() > 0);
  for (size_t i = 0; i < index->size(); ++i) {
    require(index->Find(index->name(i)) == i && index->shard(i) >= 0);
    const std::string& shard = index->shards().at(static_cast<size_t>(index->shard(i)));
    require(!shard.empty() && shard != ".." && shard.find('/') == std::string::npos);
  }
  return 0;
}
