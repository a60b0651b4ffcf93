#pragma once

#include <filesystem>

#include "cache/file_io.h"

namespace lazyrope {

// A temporary directory for one compilation, `lazyrope-<process id>-XXXXXX` in the system's folder
// of temporary files. The destructor removes it.
//
// The process holds a lock on the directory. The system releases it when the process ends, however
// it ends, so the first ScratchDirectory of a process can remove those of killed processes.
class ScratchDirectory {
 public:
  // Throws CompileError if no directory can be made.
  ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path file(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
  FileDescriptor lock_;
};

// Removes the scratch directories in `parent` that are this user's, that no process holds, and
// whose date is more than a minute from now. A younger one may belong to a process that is about to
// lock it. Failures are ignored.
void remove_stale_scratch(const std::filesystem::path& parent);

}  // namespace lazyrope
