#include "cache/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <thread>
#include <utility>

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{1};
constexpr milliseconds kLongestPause{20};
constexpr milliseconds kLongestStagger{500};

bool is_the_file_at(const FileDescriptor& file, const fs::path& path) {
  struct stat opened = {};
  struct stat named = {};
  return ::fstat(file.get(), &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

enum class Attempt { kLocked, kBusy, kFailed };

// After kFailed, errno gives the reason.
Attempt try_lock(const FileDescriptor& file, const fs::path& path, FlockFunction flock_function) {
  if (flock_function(file.get(), LOCK_EX | LOCK_NB) == 0) {
    // The last holder may have removed the file after we opened it and before we locked it.
    return is_the_file_at(file, path) ? Attempt::kLocked : Attempt::kBusy;
  }
  return errno == EWOULDBLOCK || errno == EINTR ? Attempt::kBusy : Attempt::kFailed;
}

// The pauses of one wait, which become longer.
class Pauses {
 public:
  explicit Pauses(const OnPause& on_pause) : on_pause_(on_pause) {}

  milliseconds waited() const {
    return std::chrono::duration_cast<milliseconds>(Clock::now() - begin_);
  }

  void pause(const fs::path& path) {
    if (on_pause_) on_pause_({path, waited()});
    std::this_thread::sleep_for(next_);
    next_ = std::min(2 * next_, kLongestPause);
  }

 private:
  const OnPause& on_pause_;
  Clock::time_point begin_ = Clock::now();
  milliseconds next_ = kFirstPause;
};

// Names the processes among which a process id is unique: the host and its namespace of processes,
// of which each container may have one.
std::string process_space() {
  std::array<char, 256> host = {};
  std::array<char, 64> space = {};
  (void)::gethostname(host.data(), host.size() - 1);
  if (::readlink("/proc/self/ns/pid", space.data(), space.size() - 1) < 0) space[0] = '\0';
  return fmt::format("{} {}", host.data(), space.data());
}

void write_claim(const FileDescriptor& file) {
  const std::string text = fmt::format("{} {}\n", ::getpid(), process_space());
  // Without the text, others wait until the claim is old.
  (void)!::write(file.get(), text.data(), text.size());
}

// Returns true if the claim's maker was a process of this host that has ended.
bool is_makers_process_gone(const fs::path& path) {
  const auto file = FileDescriptor::open(path, O_RDONLY);
  std::array<char, 512> text = {};
  if (!file.is_open() || ::read(file.get(), text.data(), text.size() - 1) <= 0) return false;
  char* rest = nullptr;
  const auto process = static_cast<pid_t>(std::strtol(text.data(), &rest, 10));
  return process > 0 && rest == fmt::format(" {}\n", process_space()) && ::kill(process, 0) != 0 &&
         errno == ESRCH;
}

// Watches another's claim, and finds when to take it over.
class ClaimWatch {
 public:
  // Waiting processes look at different times, so that one of them finds the claim old and makes a
  // new one before the next looks.
  explicit ClaimWatch(milliseconds timeout)
      : timeout_(timeout + (milliseconds{37} * (::getpid() % 1000)) % kLongestStagger) {}

  bool may_take_over(const fs::path& path) {
    struct stat now = {};
    if (::lstat(path.c_str(), &now) != 0) return false;
    if (!is_same(now)) {
      seen_ = now;
      since_ = Clock::now();
    }
    return Clock::now() - since_ >= timeout_ || is_makers_process_gone(path);
  }

 private:
  bool is_same(const struct stat& now) const {
    return now.st_ino == seen_.st_ino && now.st_mtim.tv_sec == seen_.st_mtim.tv_sec &&
           now.st_mtim.tv_nsec == seen_.st_mtim.tv_nsec;
  }

  milliseconds timeout_;
  struct stat seen_ = {};
  Clock::time_point since_;
};

}  // namespace

FileLock::FileLock(fs::path path, FileDescriptor file, std::string reason)
    : path_(std::move(path)),
      file_(std::move(file)),
      reason_(std::move(reason)),
      process_(::getpid()) {}

FileLock FileLock::acquire(const fs::path& path, milliseconds timeout, const OnPause& on_pause,
                           FlockFunction flock_function) {
  std::string reason;
  for (Pauses pauses(on_pause); reason.empty();) {
    auto file = FileDescriptor::open(path, O_RDWR | O_CREAT);
    if (!file.is_open()) return not_held(failure_text("open", path));
    const Attempt attempt = try_lock(file, path, flock_function);
    if (attempt == Attempt::kLocked) return {path, std::move(file), ""};
    if (attempt == Attempt::kFailed) {
      reason = failure_text("lock", path);
      ::unlink(path.c_str());  // no process can lock it
    } else if (pauses.waited() >= timeout) {
      reason = fmt::format("{} is still held after {} ms", path.native(), timeout.count());
    } else {
      pauses.pause(path);
    }
  }
  if (timeout == milliseconds::zero()) return not_held(std::move(reason));
  return claim(fs::path(path).replace_extension(kClaimExtension), timeout, on_pause,
               std::move(reason));
}

FileLock FileLock::claim(fs::path path, milliseconds timeout, const OnPause& on_pause,
                         std::string reason) {
  Pauses pauses(on_pause);
  ClaimWatch others(timeout);
  while (true) {
    auto file = FileDescriptor::open(path, O_WRONLY | O_CREAT | O_EXCL);
    if (file.is_open()) {
      write_claim(file);
      return {std::move(path), std::move(file), std::move(reason)};
    }
    if (errno != EEXIST)
      return not_held(fmt::format("{}; {}", reason, failure_text("create", path)));
    if (others.may_take_over(path)) {
      ::unlink(path.c_str());
    } else {
      pauses.pause(path);
    }
  }
}

FileLock FileLock::not_held(std::string reason) {
  return {{}, FileDescriptor(), std::move(reason)};
}

FileLock::~FileLock() {
  // The file is removed before the lock is released. If it were removed later, another process
  // might already hold a lock on it, and a third could lock a new file at the same path. A child
  // that has inherited the object does not hold the lock.
  if (is_held() && process_ == ::getpid() && is_the_file_at(file_, path_)) ::unlink(path_.c_str());
}

}  // namespace lazyrope
