#include "cache/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{20};

bool is_the_file_at(const FileDescriptor& file, const fs::path& path) {
  struct stat opened = {};
  struct stat named = {};
  return ::fstat(file.get(), &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

enum class Attempt { kLocked, kBusy, kFailed };

// After kFailed, errno gives the reason.
Attempt try_lock(const FileDescriptor& file, const fs::path& path) {
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
    // The last holder may have removed the file after we opened it and before we locked it.
    return is_the_file_at(file, path) ? Attempt::kLocked : Attempt::kBusy;
  }
  return errno == EWOULDBLOCK || errno == EINTR ? Attempt::kBusy : Attempt::kFailed;
}

}  // namespace

FileLock FileLock::acquire(const fs::path& path, milliseconds timeout,
                           const std::function<void()>& on_pause) {
  const auto deadline = Clock::now() + timeout;
  for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    auto file = FileDescriptor::open(path, O_RDWR | O_CREAT);
    if (!file.is_open()) return not_held(failure_text("open", path));
    const Attempt attempt = try_lock(file, path);
    if (attempt == Attempt::kLocked) return {path, std::move(file)};
    if (attempt == Attempt::kFailed) return not_held(failure_text("lock", path));
    if (Clock::now() >= deadline) {
      return not_held(fmt::format("{} is still held after {} ms", path.native(), timeout.count()));
    }
    if (on_pause) on_pause();
    std::this_thread::sleep_for(pause);
  }
}

FileLock FileLock::not_held(std::string reason) {
  FileLock lock({}, FileDescriptor());
  lock.reason_ = std::move(reason);
  return lock;
}

FileLock::~FileLock() {
  // The file is removed before the lock is released. If it were removed later, another process
  // might already hold a lock on it, and a third could lock a new file at the same path.
  if (is_held() && is_the_file_at(file_, path_)) ::unlink(path_.c_str());
}

}  // namespace lazyrope
