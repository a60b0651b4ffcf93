#include "cache/given_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "cache/error.h"

namespace lazyrope {

GivenFile::GivenFile(std::filesystem::path path)
    : path_(std::move(path)),
      // O_NONBLOCK: opening a FIFO must not wait for its other end.
      file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat status = {};
  if (!file_.is_open() || ::fstat(file_.get(), &status) != 0)
    throw CacheError(failure_text("open", path_));
  if (!S_ISREG(status.st_mode))
    throw CacheError(fmt::format("{} is not a regular file", path_.native()));
  size_ = static_cast<std::uint64_t>(status.st_size);
}

std::vector<std::byte> GivenFile::read(std::uint64_t offset, std::size_t count) const {
  std::vector<std::byte> bytes(count);
  for (std::size_t filled = 0; filled < count;) {
    const ssize_t got = ::pread(file_.get(), bytes.data() + filled, count - filled,
                                static_cast<off_t>(offset + filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw CacheError(failure_text("read", path_));
    if (got == 0) throw CacheError(fmt::format("{} became shorter", path_.native()));
    filled += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::vector<std::byte> read_given_file(const std::filesystem::path& path, std::size_t limit) {
  const GivenFile file(path);
  if (file.size() > limit)
    throw CacheError(
        fmt::format("{} has {} bytes; at most {} are allowed", path.native(), file.size(), limit));
  return file.read(0, static_cast<std::size_t>(file.size()));
}

}  // namespace lazyrope
