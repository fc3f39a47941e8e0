#include "kestrel/model/verify.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "kestrel/base/float_types.h"
#include "kestrel/formats/checkpoint.h"
#include "kestrel/formats/model_config.h"
#include "kestrel/model/tensor_names.h"

namespace kestrel {
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kPartBytes = uint64_t{4} << 20;  // large enough for a disk, small enough for a core's cache

// How a value of some type can be bad.
enum class Rule { kNone, kBF16, kF16, kF32, kF64, kScale };

Rule RuleFor(const TensorEntry& t) {
  constexpr std::string_view kScaleEnd = ".weight_scale";
  switch (t.dtype) {
    case Dtype::kBF16:
      return Rule::kBF16;
    case Dtype::kF16:
      return Rule::kF16;
    case Dtype::kF32:
      return Rule::kF32;
    case Dtype::kF64:
      return Rule::kF64;
    case Dtype::kU8: {
      const bool scale = t.name.size() >= kScaleEnd.size() && t.name.ends_with(kScaleEnd);
      return scale ? Rule::kScale : Rule::kNone;
    }
    default:
      return Rule::kNone;
  }
}

struct BadValues {
  int64_t first = -1, count = 0;  // first: in the tensor
};

// Counting first has no branch, so it is vector code; looking for the first one is rare.
template <class T, class IsBad>
BadValues Scan(std::span<const std::byte> bytes, IsBad is_bad) {
  const size_t n = bytes.size() / sizeof(T);
  const auto at = [&](size_t i) {
    T x;
    std::memcpy(&x, bytes.data() + i * sizeof(T), sizeof(T));
    return x;
  };
  uint64_t count = 0;
  for (size_t i = 0; i < n; ++i) count += is_bad(at(i)) ? 1 : 0;
  if (count == 0) return {};
  size_t first = 0;
  while (!is_bad(at(first))) ++first;
  return {static_cast<int64_t>(first), static_cast<int64_t>(count)};
}

// Infinity and NaN have all exponent bits set.
BadValues ScanBy(Rule rule, std::span<const std::byte> bytes) {
  switch (rule) {
    case Rule::kBF16:
      return Scan<uint16_t>(bytes, [](uint16_t x) { return (x & 0x7f80) == 0x7f80; });
    case Rule::kF16:
      return Scan<uint16_t>(bytes, [](uint16_t x) { return (x & 0x7c00) == 0x7c00; });
    case Rule::kF32:
      return Scan<uint32_t>(bytes, [](uint32_t x) { return (x & 0x7f800000u) == 0x7f800000u; });
    case Rule::kF64:
      return Scan<uint64_t>(bytes, [](uint64_t x) { return (x << 1) >= (uint64_t{0x7ff} << 53); });
    case Rule::kScale:
      return Scan<uint8_t>(bytes, [](uint8_t x) { return x == 255; });
    default:
      return {};
  }
}

// A file opened for reading at any place, from any thread.
class Reader {
 public:
  static Result<Reader> Open(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return Err(ErrorCode::kIo, "can't be opened: {}", std::strerror(errno));
    return Reader(fd);
  }
  explicit Reader(int fd) : fd_(fd) {}
  ~Reader() {
    if (fd_ >= 0) close(fd_);
  }
  Reader(Reader&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Reader& operator=(Reader&&) = delete;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Status Read(uint64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
      const ssize_t n = pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Err(ErrorCode::kIo, "can't be read at byte {}: {}", offset, std::strerror(errno));
      if (n == 0) return Err(ErrorCode::kIo, "ends at byte {}, want {} bytes more", offset, out.size());
      out = out.subspan(static_cast<size_t>(n));
      offset += static_cast<uint64_t>(n);
    }
    return {};
  }

 private:
  int fd_;
};

struct Part {
  size_t tensor;
  uint64_t begin, end;  // bytes of the tensor
};

// Reads all tensors of one shard and adds what is wrong with them, in their order.
class ShardScan {
 public:
  ShardScan(const SafetensorsFile& file, Reader reader) : file_(file), reader_(std::move(reader)) {
    for (size_t t = 0; t < file.tensors().size(); ++t) {
      const uint64_t n = file.tensors()[t].end - file.tensors()[t].begin;
      for (uint64_t at = 0; at < n; at += kPartBytes) parts_.push_back({t, at, std::min(n, at + kPartBytes)});
    }
    found_.resize(parts_.size());
  }
  size_t parts() const { return parts_.size(); }

  Result<uint64_t> Run(size_t part, std::vector<std::byte>& buffer) {
    const Part& p = parts_[part];
    const TensorEntry& t = file_.tensors()[p.tensor];
    const std::span<std::byte> bytes(buffer.data(), p.end - p.begin);
    const uint64_t data_begin = static_cast<uint64_t>(file_.file_bytes()) - file_.tensors().back().end;
    const Status read = reader_.Read(data_begin + t.begin + p.begin, bytes);
    if (!read) {
      found_[part].error = read.error().message;
    } else {
      found_[part].values = ScanBy(RuleFor(t), bytes);
    }
    return p.end - p.begin;
  }

  // True where all of it could be read.
  bool Report(std::vector<VerifyProblem>& problems) const {
    bool unreadable = false;  // once a file: every part after a cut would say the same
    for (size_t i = 0; i < parts_.size();) {
      const size_t tensor = parts_[i].tensor;
      const TensorEntry& t = file_.tensors()[tensor];
      BadValues all;
      for (; i < parts_.size() && parts_[i].tensor == tensor; ++i) {
        const Found& f = found_[i];
        if (!f.error.empty() && !std::exchange(unreadable, true)) problems.push_back({file_.path(), f.error});
        if (f.values.count == 0) continue;
        const auto before = static_cast<int64_t>(parts_[i].begin / SizeOf(t.dtype));
        if (all.count == 0) all.first = before + f.values.first;
        all.count += f.values.count;
      }
      if (all.count == 0) continue;
      const char* kind = RuleFor(t) == Rule::kScale ? "scales of 255 (NaN)" : "values that are NaN or infinite";
      problems.push_back(
          {t.name, fmt::format("{} of {} {}, the first is number {}", all.count, NumElements(t.shape), kind, all.first),
           all.first, all.count});
    }
    return !unreadable;
  }

 private:
  struct Found {
    std::string error;
    BadValues values;
  };
  const SafetensorsFile& file_;
  Reader reader_;
  std::vector<Part> parts_;
  std::vector<Found> found_;  // beside parts_
};

void Add(std::vector<VerifyProblem>& problems, const Error& error) {
  const auto same = [&](const VerifyProblem& p) { return p.what == error.message; };
  if (std::none_of(problems.begin(), problems.end(), same)) problems.push_back({"", error.message});
}

// Where the set does not open as one, each file is still looked at, to say all that is wrong at once.
void OpenEach(const std::string& folder, std::vector<SafetensorsFile>& files, std::vector<VerifyProblem>& problems) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const fs::directory_entry& e : fs::directory_iterator(folder, error)) {
    if (e.path().extension() == ".safetensors") paths.push_back(e.path().string());
  }
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    Result<SafetensorsFile> file = SafetensorsFile::Open(path);
    if (file) {
      files.push_back(std::move(*file));
    } else {
      Add(problems, file.error());
    }
  }
}

// True where every byte could be read.
bool ScanFiles(ThreadPool& pool, std::span<const SafetensorsFile* const> files, const ByteProgress& progress,
               VerifyReport& report) {
  bool readable = true;
  std::vector<ShardScan> scans;
  std::vector<std::pair<size_t, size_t>> parts;  // scan, part
  for (const SafetensorsFile* file : files) {
    Result<Reader> reader = Reader::Open(file->path());
    if (!reader) {
      report.problems.push_back({file->path(), reader.error().message});
      readable = false;
      continue;
    }
    scans.emplace_back(*file, std::move(*reader));
    for (size_t i = 0; i < scans.back().parts(); ++i) parts.emplace_back(scans.size() - 1, i);
    report.tensors += static_cast<int64_t>(file->tensors().size());
    report.bytes += file->tensors().empty() ? 0 : file->tensors().back().end;
  }
  std::vector<std::vector<std::byte>> buffers(static_cast<size_t>(pool.size()), std::vector<std::byte>(kPartBytes));
  (void)RunParts(pool, static_cast<int64_t>(parts.size()), report.bytes, progress, [&](int64_t i, int worker) {
    const auto [scan, part] = parts[static_cast<size_t>(i)];
    return scans[scan].Run(part, buffers[static_cast<size_t>(worker)]);
  });
  for (const ShardScan& s : scans) readable &= s.Report(report.problems);
  return readable;
}

}  // namespace

Result<VerifyReport> Verify(ThreadPool& pool, const std::string& folder, const ByteProgress& progress) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return Err(ErrorCode::kNotFound, "[model.verify] {}: got {}, want a model folder", folder,
               fs::exists(folder, error) ? "a file" : "nothing");
  }
  VerifyReport report;
  const Result<ModelConfig> config = ReadModelConfig(folder);
  if (!config) Add(report.problems, config.error());
  const Result<Checkpoint> checkpoint = Checkpoint::Open(folder);
  std::vector<SafetensorsFile> loose;
  std::vector<const SafetensorsFile*> files;
  if (checkpoint) {
    for (const SafetensorsFile& f : checkpoint->shards()) files.push_back(&f);
  } else {
    Add(report.problems, checkpoint.error());
    OpenEach(folder, loose, report.problems);
    for (const SafetensorsFile& f : loose) files.push_back(&f);
  }
  const bool readable = ScanFiles(pool, files, progress, report);
  // CheckTensors looks through mappings, so only after all of it has been read.
  if (checkpoint && config && readable) {
    const Status fits = CheckTensors(*config, *checkpoint);
    // Scales of 255 are in the report already, with their count.
    if (!fits && fits.error().code != ErrorCode::kNotFinite) Add(report.problems, fits.error());
  }
  return report;
}

}  // namespace kestrel
