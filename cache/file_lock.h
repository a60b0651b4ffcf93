#pragma once

#include <sys/file.h>
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "cache/file_io.h"

namespace lazyrope {

// A wait for a lock, as it is before a pause.
struct LockWait {
  const std::filesystem::path& path;  // the lock file
  std::chrono::milliseconds waited;
};

// Called before each pause of a wait. An exception from it ends the wait.
using OnPause = std::function<void(const LockWait& wait)>;

// The extension of a claim's file, which has the lock file's name otherwise.
inline constexpr char kClaimExtension[] = ".claim";

// The system's flock(), or a test's.
using FlockFunction = int (*)(int descriptor, int operation);

// An advisory lock between processes, and between threads of one process, held while this object
// lives. It saves duplicate work and is not needed for safety. If it cannot be taken (in a
// read-only directory, for example), it is not held, and reason() says why. The caller then goes on
// without it.
//
// The holder removes the lock file before it releases the lock, so lock files do not accumulate. A
// process that locks a file checks that the path still names it, and opens the path again
// otherwise. On NFS, two processes may hold a lock at once: its view of a path may be seconds old,
// and its locks are per process.
//
// Where flock() does not work, or a process holds the lock for longer than the timeout, the waiting
// processes must not all begin the work at once. They compete for a claim instead: a file beside
// the lock file that names its maker, of which there is one at a time.
class FileLock {
 public:
  // Waits at most `timeout` for the lock, and then for a claim: until there is none, or its maker
  // is dead, or it has been there for another `timeout`. A timeout of zero tries the lock once and
  // makes no claim. The directory of `path` must exist.
  static FileLock acquire(const std::filesystem::path& path, std::chrono::milliseconds timeout,
                          const OnPause& on_pause = {}, FlockFunction flock_function = &::flock);

  // Returns a lock that is not held, with the reason.
  static FileLock not_held(std::string reason);

  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

  // Returns true if the lock or a claim is held.
  bool is_held() const { return file_.is_open(); }
  // Returns the reason why the lock is not held, or why a claim is held in its place. It is empty
  // when the lock is held.
  const std::string& reason() const { return reason_; }

 private:
  FileLock(std::filesystem::path path, FileDescriptor file, std::string reason);
  static FileLock claim(std::filesystem::path path, std::chrono::milliseconds timeout,
                        const OnPause& on_pause, std::string reason);

  std::filesystem::path path_;
  FileDescriptor file_;
  std::string reason_;
  pid_t process_;
};

}  // namespace lazyrope
