#include "runtime/emulator/scratch_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <string>
#include <string_view>
#include <system_error>

#include "runtime/base/config.h"
#include "runtime/base/error.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "lazyrope-";
constexpr std::size_t kRandomCharacters = 6;
constexpr std::time_t kYoungSeconds = 60;

// Returns true for "lazyrope-<number>-XXXXXX".
bool is_scratch_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  const auto digits = name.find_first_not_of("0123456789");
  return digits != 0 && digits != std::string_view::npos && name[digits] == '-' &&
         name.size() == digits + 1 + kRandomCharacters;
}

FileDescriptor open_directory(const fs::path& path) {
  return FileDescriptor::open(path, O_RDONLY | O_DIRECTORY);
}

bool try_lock(const FileDescriptor& directory) {
  return ::flock(directory.get(), LOCK_EX | LOCK_NB) == 0;
}

bool is_old_and_own(const FileDescriptor& directory) {
  struct stat status = {};
  if (::fstat(directory.get(), &status) != 0 || status.st_uid != ::geteuid()) return false;
  const std::time_t age = std::time(nullptr) - status.st_mtime;
  return age > kYoungSeconds || age < -kYoungSeconds;
}

}  // namespace

ScratchDirectory::ScratchDirectory() {
  std::error_code failed;
  const fs::path parent = fs::temp_directory_path(failed);
  // A once-flag would let a child wait for ever that is forked during the call.
  static constinit std::atomic<bool> has_cleaned = false;
  if (!failed && !has_cleaned.exchange(true)) remove_stale_scratch(parent);
  std::string name = (parent / fmt::format("{}{}-XXXXXX", kPrefix, ::getpid())).string();
  if (failed || ::mkdtemp(name.data()) == nullptr) {
    const std::string reason = failed ? failed.message() : std::generic_category().message(errno);
    throw CompileError({.what_failed = fmt::format(
                            "cannot make a directory in {}: {}",
                            process_environment("TMPDIR").value_or(parent.string()), reason),
                        .advice = "set TMPDIR to a directory that can be written"});
  }
  path_ = name;
  lock_ = open_directory(path_);
  // On a file system without locks, no process can lock the directory, so none removes it.
  (void)try_lock(lock_);
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void remove_stale_scratch(const fs::path& parent) {
  std::error_code failed;
  for (fs::directory_iterator it(parent, failed), end; !failed && it != end; it.increment(failed)) {
    if (!is_scratch_name(it->path().filename().native())) continue;
    const FileDescriptor directory = open_directory(it->path());
    std::error_code ignored;
    if (directory.is_open() && is_old_and_own(directory) && try_lock(directory))
      fs::remove_all(it->path(), ignored);
  }
}

}  // namespace lazyrope
