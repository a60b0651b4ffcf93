#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "cache/file_io.h"

namespace lazyrope {

// An advisory lock between processes, and between threads of one process, held while this object
// lives. It saves duplicate work and is not needed for safety. A lock that cannot be taken (a
// read-only directory, a file system without flock, a timeout) is not held, and reason() says why.
// The caller then goes on without it.
//
// The holder removes the lock file before it releases the lock, so lock files do not accumulate. A
// process that locks a file checks that the path still names it, and opens the path again
// otherwise. On NFS, two processes may hold a lock at once: its view of a path may be seconds old,
// and its locks are per process.
class FileLock {
 public:
  // Waits at most `timeout`; zero tries once. The directory of `path` must exist. The returned lock
  // is not held if it cannot be taken. `on_pause` is called before each pause; an exception from it
  // ends the wait.
  static FileLock acquire(const std::filesystem::path& path, std::chrono::milliseconds timeout,
                          const std::function<void()>& on_pause = {});

  // Returns a lock that is not held, with the reason.
  static FileLock not_held(std::string reason);

  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

  bool is_held() const { return file_.is_open(); }
  // Returns the reason why the lock is not held. It is empty when it is.
  const std::string& reason() const { return reason_; }

 private:
  FileLock(std::filesystem::path path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  FileDescriptor file_;
  std::string reason_;
};

}  // namespace lazyrope
