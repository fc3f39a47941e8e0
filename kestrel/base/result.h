// Errors that a caller can act on: Result<T> at every door (files, config, command line).
//
//   Result<Header> ReadHeader(const std::string& path);
//   KESTREL_ASSIGN_OR_RETURN(const Header header, ReadHeader(path));
//   return Err(ErrorCode::kCorrupt, "[formats.safetensors] {}: header length, got {}, want at most {}", path, n, size);
//
// A message is one line: `[room.op] where: what, got X, want Y; hint`. User input never aborts the process.
#pragma once

#include <fmt/format.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace kestrel {

enum class ErrorCode {
  kInvalidArgument,  // a value the caller gave is not usable
  kNotFound,         // a file, key or tensor is missing
  kCorrupt,          // bytes contradict their format
  kUnsupported,      // valid, but not implemented here
  kMismatch,         // two things that must agree do not (config and tensor, state and model)
  kIo,               // the operating system said no
  kOutOfRange,       // an id, position or size past its limit
  kResourceExhausted,
  kNotFinite,  // NaN or infinity where numbers must be finite
};

struct Error {
  ErrorCode code;
  std::string message;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

template <class... Args>
tl::unexpected<Error> Err(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

#define KESTREL_CONCAT_(a, b) a##b
#define KESTREL_CONCAT(a, b) KESTREL_CONCAT_(a, b)
#define KESTREL_RETURN_IF_ERROR(expr)                                                                           \
  do {                                                                                                          \
    if (auto status_ = (expr); !status_) return ::tl::unexpected<::kestrel::Error>(std::move(status_).error()); \
  } while (0)
#define KESTREL_ASSIGN_OR_RETURN(decl, expr) KESTREL_ASSIGN_OR_RETURN_(KESTREL_CONCAT(result_, __LINE__), decl, expr)
#define KESTREL_ASSIGN_OR_RETURN_(tmp, decl, expr)                             \
  auto tmp = (expr);                                                           \
  if (!tmp) return ::tl::unexpected<::kestrel::Error>(std::move(tmp).error()); \
  decl = std::move(*tmp)

}  // namespace kestrel
