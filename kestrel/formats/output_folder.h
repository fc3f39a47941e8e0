// A folder that appears whole or not at all: filled under a temporary name beside its place, then renamed.
//
//   KESTREL_ASSIGN_OR_RETURN(OutputFolder out, OutputFolder::Create("models/nano"));
//   KESTREL_RETURN_IF_ERROR(WriteTextFile(out.Path("config.json"), text));
//   KESTREL_RETURN_IF_ERROR(out.Commit());   // without it the temporary folder is removed
#pragma once

#include <string>
#include <string_view>

#include "kestrel/base/result.h"

namespace kestrel {

class OutputFolder {
 public:
  // kInvalidArgument where `folder` is there and is anything but an empty folder; kIo where its parent is not writable.
  static Result<OutputFolder> Create(const std::string& folder);
  ~OutputFolder();
  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&&) = delete;
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // Where to write the file that will be folder/name.
  std::string Path(std::string_view name) const { return temporary_ + "/" + std::string(name); }
  const std::string& temporary() const { return temporary_; }
  Status Commit();

 private:
  OutputFolder() = default;
  std::string folder_, temporary_;  // temporary_ is empty once renamed
};

}  // namespace kestrel
