#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "cache/file_io.h"

namespace lazyrope {

// A regular file that a command line or an environment variable names, open for reading. Unlike a
// file of the cache, it may be reached through a symbolic link, and may belong to any user. All
// functions throw a CacheError that names the file.
class GivenFile {
 public:
  explicit GivenFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // Returns the size that the file had when it was opened.
  std::uint64_t size() const { return size_; }

  // Returns `count` bytes from `offset` on. The file must have that many. Several threads may read
  // at once.
  std::vector<std::byte> read(std::uint64_t offset, std::size_t count) const;

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

// Returns the whole file, which may have at most `limit` bytes.
std::vector<std::byte> read_given_file(const std::filesystem::path& path, std::size_t limit);

}  // namespace lazyrope
