#include "cache/file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "cache/error.h"

namespace lazyrope {
namespace {

constexpr mode_t kFileMode = 0644;
constexpr mode_t kDirectoryMode = 0755;

namespace fs = std::filesystem;

std::string errno_text() { return std::generic_category().message(errno); }

void check_trust(const struct stat& status) {
  if (!S_ISREG(status.st_mode)) throw CacheError("not a regular file");
  const uid_t user = ::geteuid();
  if (status.st_uid != user && status.st_uid != 0) {
    throw CacheError(
        fmt::format("owned by user {}; only files of user {} or root are trusted: chown them",
                    status.st_uid, user));
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    throw CacheError(
        fmt::format("other users may write it (mode {:04o}; needs go-w: chmod -R go-w)",
                    status.st_mode & 07777));
  }
}

std::vector<std::byte> read_up_to(const FileDescriptor& file, std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::size_t filled = 0;
  while (filled < size) {
    const ssize_t count = ::read(file.get(), bytes.data() + filled, size - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw CacheError(fmt::format("cannot be read: {}", errno_text()));
    if (count == 0) break;
    filled += static_cast<std::size_t>(count);
  }
  bytes.resize(filled);
  return bytes;
}

// A file under construction. The destructor removes it, unless it was renamed to its final path.
class TemporaryFile {
 public:
  explicit TemporaryFile(fs::path target) : path_(std::move(target)) {
    path_.replace_extension(".XXXXXX.tmp");
    std::string name = path_.native();
    file_ = FileDescriptor(::mkostemps(name.data(), 4, O_CLOEXEC));
    if (!file_.is_open()) throw CacheError(failure_text("create", path_));
    path_ = name;
  }
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw CacheError(failure_text("write", path_));
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
    // Other users may read kernels that were precompiled for them; only the owner may change them.
    if (::fchmod(file_.get(), kFileMode) != 0) throw CacheError(failure_text("write", path_));
    // Without fsync, a crash of the machine may leave the new name on a file without its bytes.
    if (::fsync(file_.get()) != 0) throw CacheError(failure_text("write", path_));
  }

  void rename_to(const fs::path& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0)
      throw CacheError(failure_text("put in place", target));
    path_.clear();
  }

 private:
  fs::path path_;
  FileDescriptor file_;
};

}  // namespace

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (is_open()) ::close(fd_);
}

FileDescriptor FileDescriptor::open(const fs::path& path, int flags) {
  // O_NONBLOCK: opening a FIFO that another user put there must not wait for its other end.
  flags |= O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  return FileDescriptor(::open(path.c_str(), flags, S_IRUSR | S_IWUSR));
}

std::string failure_text(std::string_view action, const fs::path& path) {
  const std::string reason = errno_text();
  return fmt::format("cannot {} {}: {}", action, path.native(), reason);
}

std::optional<std::vector<std::byte>> read_trusted_file(const fs::path& path, std::size_t limit) {
  const auto file = FileDescriptor::open(path, O_RDONLY);
  if (!file.is_open() && errno == ENOENT) return std::nullopt;
  if (!file.is_open() && errno == ELOOP) throw CacheError("a symbolic link, which is not followed");
  if (!file.is_open()) throw CacheError(fmt::format("cannot be opened: {}", errno_text()));
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) {
    throw CacheError(fmt::format("cannot be examined: {}", errno_text()));
  }
  check_trust(status);
  return read_up_to(file, std::min(limit, static_cast<std::size_t>(status.st_size)));
}

void publish_file(const fs::path& path, std::span<const std::byte> bytes) {
  TemporaryFile temporary(path);
  temporary.write(bytes);
  temporary.rename_to(path);
}

void check_writable(const fs::path& directory) { const TemporaryFile file(directory / "check"); }

void create_own_directories(const fs::path& path) {
  if (::mkdir(path.c_str(), kDirectoryMode) == 0 || errno == EEXIST) return;
  const fs::path parent = path.parent_path();
  if (errno != ENOENT || parent.empty() || parent == path)
    throw CacheError(failure_text("create directory", path));
  create_own_directories(parent);
  if (::mkdir(path.c_str(), kDirectoryMode) != 0 && errno != EEXIST)
    throw CacheError(failure_text("create directory", path));
}

}  // namespace lazyrope
