#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "cache/file_io.h"

namespace lazyrope {

// An advisory lock between processes, and between threads of one, held while this lives. It is for
// sparing work that somebody else does already, not for safety: a lock that cannot be had (a
// read-only directory, a file system without flock, the time is up) is a guard that is not held
// and says why, and the caller goes on without it.
//
// The holder removes the lock file before letting go, so lock files do not pile up; whoever locks
// a file notices when the path no longer names it, and opens the path anew. On NFS, whose view of
// a path may be seconds old and whose locks are per process, two may hold a lock at once.
class FileLock {
 public:
  // Waits at most `timeout`; zero tries once. The directory of `path` must exist. Never throws for
  // want of the lock; what `on_pause` throws, which is called before each pause, ends the waiting.
  static FileLock acquire(const std::filesystem::path& path, std::chrono::milliseconds timeout,
                          const std::function<void()>& on_pause = {});

  // A guard of nothing.
  static FileLock not_held(std::string reason);

  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

  bool is_held() const { return file_.is_open(); }
  // Why it is not held; empty when it is.
  const std::string& reason() const { return reason_; }

 private:
  FileLock(std::filesystem::path path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  FileDescriptor file_;
  std::string reason_;
};

}  // namespace lazyrope
