#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

// An open file, closed when this goes. Every open is close-on-exec and follows no symbolic link in
// the last component of the path.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  // `flags` as for open(2); a new file is for its owner alone. On failure the descriptor is not
  // open, and errno says why.
  static FileDescriptor open(const std::filesystem::path& path, int flags);

  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }

 private:
  int fd_;
};

// "cannot <action> <path>: <reason>", with the reason that errno has now.
std::string failure_text(std::string_view action, const std::filesystem::path& path);

// The first `limit` bytes of a file that nobody but this user and root can have written; nullopt
// when there is no such file. Throws CacheError when it cannot be read or must not be trusted.
std::optional<std::vector<std::byte>> read_trusted_file(const std::filesystem::path& path,
                                                        std::size_t limit);

// Puts a file with these bytes, for the owner alone, at `path`: readers see the old file or all of
// the new one, even across a crash. Until then the bytes are in `<path without
// extension>.XXXXXX.tmp`, which only a killed process leaves behind. Throws CacheError.
void publish_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

// CacheError where no file can be made in a directory.
void check_writable(const std::filesystem::path& directory);

// Makes the missing directories of `path`, for the owner alone. Throws CacheError.
void create_own_directories(const std::filesystem::path& path);

}  // namespace lazyrope
