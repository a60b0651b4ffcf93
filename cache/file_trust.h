#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace lazyrope {

// The environment variable that lists trusted owners. Refusals name it.
inline constexpr char kTrustVariable[] = "LAZYROPE_CACHE_TRUST";

// The users whose files may be used, besides this process's user and root, and the groups whose
// members may write such files. A cache entry is code, so everyone in this list may run code here.
struct FileTrust {
  std::set<uid_t> users;
  std::set<gid_t> groups;

  // Parses a list such as "1000,builder,group:0": users and groups, each a number or a name of this
  // machine. Returns nullopt for any other text, so there is no word for everyone.
  static std::optional<FileTrust> parse(std::string_view text);

  // Returns the list that parse() reads, with numbers: "1000,group:0".
  std::string text() const;

  // Symbolic links are followed only when the list is not empty.
  bool follows_links() const { return !users.empty() || !groups.empty(); }

  bool owns(uid_t user) const;

  // Throws CacheError, with the reason and what to do, when an open file is not a regular file, has
  // an owner who is not trusted, or may be written by someone who is not trusted.
  void check_file(const struct stat& status) const;

  // Throws CacheError when the symbolic link of this name must not be followed.
  void check_link(std::string_view name, const struct stat& status) const;
};

// Returns what a file is: "a regular file", "a folder", "a symbolic link", "a FIFO", "a socket" or
// "a device".
std::string_view file_kind(mode_t mode);

}  // namespace lazyrope
