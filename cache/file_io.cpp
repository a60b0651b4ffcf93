#include "cache/file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <system_error>
#include <utility>

#include "cache/error.h"

namespace lazyrope {
namespace {

constexpr mode_t kFileMode = 0644;
constexpr mode_t kDirectoryMode = 0755;

namespace fs = std::filesystem;

std::string errno_text() { return std::generic_category().message(errno); }

// The kernel follows at most as many links in one path.
constexpr int kMostLinks = 40;

std::string reason_not_opened(const fs::path& path) {
  const int reason = errno;
  struct stat status = {};
  if (::lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    return fmt::format("{}, not a regular file", file_kind(status.st_mode));
  return fmt::format("cannot be opened: {}", std::generic_category().message(reason));
}

// Returns the file to which a path leads whose last component is a link. Throws CacheError if a
// link on the way has an owner who is not trusted. Links in the parent folder are not checked.
fs::path follow_links(const fs::path& path, const FileTrust& trust) {
  fs::path resolved = path.parent_path();
  std::deque<fs::path> rest = {path.filename()};
  for (int links = 0; !rest.empty();) {
    const fs::path next = resolved / rest.front();  // an absolute component replaces all before it
    rest.pop_front();
    struct stat status = {};
    if (::lstat(next.c_str(), &status) != 0)
      throw CacheError(failure_text("follow the link to", next));
    if (S_ISLNK(status.st_mode)) {
      trust.check_link(next.filename().native(), status);
      if (++links > kMostLinks) throw CacheError("a symbolic link in a chain without an end");
      std::error_code failed;
      const fs::path target = fs::read_symlink(next, failed);
      if (failed) throw CacheError(fmt::format("{}: {}", next.native(), failed.message()));
      rest.insert(rest.begin(), target.begin(), target.end());
    } else {
      resolved = next;
    }
  }
  return resolved;
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

// Some file systems (FUSE, CIFS) know no fsync or no modes. They can hold a cache nevertheless: a
// reader verifies the checksum, the owner and the mode.
bool is_unsupported(int error) { return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP; }

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
    if (::fchmod(file_.get(), kFileMode) != 0 && !is_unsupported(errno) && errno != EPERM)
      throw CacheError(failure_text("write", path_));
    // Without fsync, a crash of the machine may leave the new name on a file without its bytes.
    if (::fsync(file_.get()) != 0 && !is_unsupported(errno))
      throw CacheError(failure_text("write", path_));
    // A network file system may report a full disk only here.
    if (!file_.close()) throw CacheError(failure_text("write", path_));
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

// Returns true if there is a directory afterwards; otherwise errno says why there is none.
bool make_directory(const fs::path& path) {
  if (::mkdir(path.c_str(), kDirectoryMode) != 0) return errno == EEXIST;
  // A umask such as 0777 takes even the owner's own rights away.
  struct stat status = {};
  if (::lstat(path.c_str(), &status) == 0 && (status.st_mode & S_IRWXU) != S_IRWXU)
    (void)::fchmodat(AT_FDCWD, path.c_str(), (status.st_mode & 07777) | S_IRWXU,
                     AT_SYMLINK_NOFOLLOW);
  return true;
}

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

bool FileDescriptor::close() {
  // Linux closes the descriptor even when a signal interrupts the call.
  return ::close(std::exchange(fd_, -1)) == 0 || errno == EINTR;
}

std::optional<std::vector<std::byte>> read_trusted_file(const fs::path& path, std::size_t limit,
                                                        const FileTrust& trust) {
  auto file = FileDescriptor::open(path, O_RDONLY);
  if (!file.is_open() && errno == ENOENT) return std::nullopt;
  fs::path opened = path;
  if (!file.is_open() && errno == ELOOP) {
    opened = follow_links(path, trust);
    file = FileDescriptor::open(opened, O_RDONLY);
  }
  if (!file.is_open()) throw CacheError(reason_not_opened(opened));
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) {
    throw CacheError(fmt::format("cannot be examined: {}", errno_text()));
  }
  trust.check_file(status);
  return read_up_to(file, std::min(limit, static_cast<std::size_t>(status.st_size)));
}

void publish_file(const fs::path& path, std::span<const std::byte> bytes) {
  TemporaryFile temporary(path);
  temporary.write(bytes);
  temporary.rename_to(path);
}

void check_writable(const fs::path& directory) { const TemporaryFile file(directory / "check"); }

void create_own_directories(const fs::path& path) {
  if (make_directory(path)) return;
  const fs::path parent = path.parent_path();
  if (errno != ENOENT || parent.empty() || parent == path)
    throw CacheError(failure_text("create directory", path));
  create_own_directories(parent);
  if (!make_directory(path)) throw CacheError(failure_text("create directory", path));
}

}  // namespace lazyrope
