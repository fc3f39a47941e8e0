#include "apps/sha256_list.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "kestrel/formats/atomic_file.h"

namespace kestrel {
namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxListBytes = size_t{64} << 20;
constexpr size_t kReadBytes = size_t{1} << 20;
constexpr size_t kHashDigits = 64;

using Digest = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

// An open file, closed at the end.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

// on_bytes(n) after each piece.
template <class F>
Result<std::string> HashFile(const std::string& path, F&& on_bytes) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return Err(ErrorCode::kIo, "can't be opened: {}", std::strerror(errno));
  const Digest digest(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  bool ok = digest != nullptr && EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr) == 1;
  std::vector<std::byte> buffer(kReadBytes);
  for (ssize_t n = 1; ok && n != 0;) {
    n = read(file.fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Err(ErrorCode::kIo, "can't be read: {}", std::strerror(errno));
    ok = EVP_DigestUpdate(digest.get(), buffer.data(), static_cast<size_t>(n)) == 1;
    on_bytes(static_cast<uint64_t>(n));
  }
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  if (!ok || EVP_DigestFinal_ex(digest.get(), hash, &length) != 1) {
    return Err(ErrorCode::kUnsupported, "OpenSSL refuses SHA-256");
  }
  std::string text;
  for (unsigned int i = 0; i < length; ++i) text += fmt::format("{:02x}", hash[i]);
  return text;
}

Result<Sha256Line> ParseLine(std::string_view line, std::string_view where, size_t number) {
  const auto wrong = [&](std::string_view want) {
    return Err(ErrorCode::kCorrupt, "[apps.sha256] {} line {}: got '{}', want {}", where, number, line.substr(0, 90),
               want);
  };
  // "hash, a space, a space or an asterisk, name"
  if (line.size() < kHashDigits + 3 || line[kHashDigits] != ' ' ||
      (line[kHashDigits + 1] != ' ' && line[kHashDigits + 1] != '*')) {
    return wrong("64 hexadecimal digits, two spaces, a name");
  }
  Sha256Line out{std::string(line.substr(0, kHashDigits)), std::string(line.substr(kHashDigits + 2))};
  for (char& c : out.hash) {
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
    if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) return wrong("64 hexadecimal digits, two spaces, a name");
  }
  return out;
}

}  // namespace

Result<std::vector<Sha256Line>> ReadSha256List(const std::string& path) {
  KESTREL_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMaxListBytes));
  std::vector<Sha256Line> lines;
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    at = end + 1;
    ++number;
    if (line.empty()) continue;
    KESTREL_ASSIGN_OR_RETURN(Sha256Line parsed, ParseLine(line, path, number));
    lines.push_back(std::move(parsed));
  }
  if (lines.empty()) return Err(ErrorCode::kCorrupt, "[apps.sha256] {}: got no line, want one a file", path);
  return lines;
}

std::vector<VerifyProblem> CheckSha256(ThreadPool& pool, const std::string& folder,
                                       const std::vector<Sha256Line>& lines, const ByteProgress& progress) {
  uint64_t total = 0;
  for (const Sha256Line& line : lines) {
    std::error_code error;
    const uint64_t size = fs::file_size(fs::path(folder) / line.name, error);
    if (!error) total += size;
  }
  std::atomic<uint64_t> done{0};
  std::vector<std::string> wrong(lines.size());  // empty: as it should be
  pool.Run(static_cast<int64_t>(lines.size()), [&](int64_t i, int worker) {
    const Sha256Line& line = lines[static_cast<size_t>(i)];
    const Result<std::string> hash = HashFile((fs::path(folder) / line.name).string(), [&](uint64_t n) {
      const uint64_t now = done += n;
      if (worker == 0 && progress) progress(static_cast<double>(now), static_cast<double>(total));
    });
    if (!hash) {
      wrong[static_cast<size_t>(i)] = hash.error().message;
    } else if (*hash != line.hash) {
      wrong[static_cast<size_t>(i)] = fmt::format("sha256, got {}, want {}", *hash, line.hash);
    }
  });
  std::vector<VerifyProblem> problems;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!wrong[i].empty()) problems.push_back({lines[i].name, wrong[i]});
  }
  return problems;
}

}  // namespace kestrel
