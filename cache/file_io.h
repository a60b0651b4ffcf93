#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/file_trust.h"

namespace lazyrope {

// An open file, closed by the destructor. Every open is close-on-exec and follows no symbolic link
// in the last component of the path.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  // Opens a file with the `flags` of open(2). Only its owner may read or write a new file. On
  // failure the descriptor is not open, and errno says why.
  static FileDescriptor open(const std::filesystem::path& path, int flags);

  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }

  // Closes the file early, to learn whether that fails; errno then says why.
  bool close();

 private:
  int fd_;
};

// Returns "cannot <action> <path>: <reason>", with the reason that errno has now.
std::string failure_text(std::string_view action, const std::filesystem::path& path);

// Returns the first `limit` bytes of a file, or nullopt when there is none. Throws CacheError when
// the file cannot be read, or when a user who is not trusted may have written it. A symbolic link
// is followed if `trust` lists anyone and trusts the owner of each link on the way.
std::optional<std::vector<std::byte>> read_trusted_file(const std::filesystem::path& path,
                                                        std::size_t limit, const FileTrust& trust);

// Writes a file with these bytes at `path`, readable by all and writable by its owner. Readers see
// the old file or all of the new one, even across a crash. Until then the bytes are in `<path
// without extension>.XXXXXX.tmp`, which only a killed process leaves on disk. Throws CacheError.
void publish_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

// Throws CacheError if no file can be made in the directory.
void check_writable(const std::filesystem::path& directory);

// Makes the missing directories of `path`, writable by their owner alone. Throws CacheError.
void create_own_directories(const std::filesystem::path& path);

}  // namespace lazyrope
