#include "cache/file_trust.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <vector>

#include "cache/error.h"

namespace lazyrope {
namespace {

constexpr std::string_view kGroupPrefix = "group:";
constexpr std::uint32_t kNobodyId = UINT32_MAX;  // the system calls give this number to no one

std::optional<std::uint32_t> parse_number(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number == kNobodyId)
    return std::nullopt;
  return number;
}

// Looks a name up with getpwnam_r or getgrnam_r, whose buffer must grow until the record fits.
template <class Record, class Lookup, class Id>
std::optional<std::uint32_t> find_id(const std::string& name, Lookup lookup, Id Record::* id) {
  Record record = {};
  Record* found = nullptr;
  std::vector<char> buffer(1024);
  while (lookup(name.c_str(), &record, buffer.data(), buffer.size(), &found) == ERANGE &&
         buffer.size() < 1 << 20)
    buffer.resize(2 * buffer.size());
  return found == nullptr ? std::nullopt : std::optional<std::uint32_t>(record.*id);
}

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

bool add_item(FileTrust& trust, std::string_view item) {
  const bool is_group = item.starts_with(kGroupPrefix);
  if (is_group) item.remove_prefix(kGroupPrefix.size());
  auto id = parse_number(item);
  if (!id && is_group) id = find_id(std::string(item), ::getgrnam_r, &::group::gr_gid);
  if (!id && !is_group) id = find_id(std::string(item), ::getpwnam_r, &::passwd::pw_uid);
  if (!id) return false;
  (is_group ? trust.groups : trust.users).insert(*id);
  return true;
}

// Returns the setting that extends `trust` by what is missing.
std::string setting(FileTrust trust, std::optional<uid_t> user, std::optional<gid_t> group) {
  if (user) trust.users.insert(*user);
  if (group) trust.groups.insert(*group);
  return fmt::format("{}={}", kTrustVariable, trust.text());
}

}  // namespace

std::optional<FileTrust> FileTrust::parse(std::string_view text) {
  FileTrust trust;
  for (bool is_last = false; !is_last;) {
    const auto comma = text.find(',');
    is_last = comma == std::string_view::npos;
    if (!add_item(trust, trimmed(text.substr(0, comma)))) return std::nullopt;
    if (!is_last) text.remove_prefix(comma + 1);
  }
  return trust;
}

std::string FileTrust::text() const {
  std::vector<std::string> items;
  items.reserve(users.size() + groups.size());
  for (const uid_t user : users) items.push_back(fmt::to_string(user));
  for (const gid_t group : groups) items.push_back(fmt::format("{}{}", kGroupPrefix, group));
  return fmt::format("{}", fmt::join(items, ","));
}

bool FileTrust::owns(uid_t user) const {
  return user == 0 || user == ::geteuid() || users.contains(user);
}

void FileTrust::check_file(const struct stat& status) const {
  if (!S_ISREG(status.st_mode))
    throw CacheError(fmt::format("{}, not a regular file", file_kind(status.st_mode)));
  if ((status.st_mode & S_IWOTH) != 0)
    throw CacheError(fmt::format("any user may write it (mode {:04o}): run chmod -R go-w",
                                 status.st_mode & 07777));
  const bool group_writes = (status.st_mode & S_IWGRP) != 0 && !groups.contains(status.st_gid);
  const auto group = group_writes ? std::optional(status.st_gid) : std::nullopt;
  if (!owns(status.st_uid))
    throw CacheError(fmt::format(
        "owned by user {}; only files of user {} or root are trusted: chown them, or set {} if you "
        "trust their writers",
        status.st_uid, ::geteuid(), setting(*this, status.st_uid, group)));
  if (group_writes)
    throw CacheError(
        fmt::format("group {} may write it (mode {:04o}): run chmod -R go-w, or set {} if you "
                    "trust the whole group",
                    status.st_gid, status.st_mode & 07777, setting(*this, {}, group)));
}

void FileTrust::check_link(std::string_view name, const struct stat& status) const {
  if (follows_links() && owns(status.st_uid)) return;
  throw CacheError(
      fmt::format("the symbolic link {} of user {} is not followed: set {} if you trust its owner",
                  name, status.st_uid, setting(*this, status.st_uid, {})));
}

std::string_view file_kind(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return "a regular file";
    case S_IFDIR:
      return "a folder";
    case S_IFLNK:
      return "a symbolic link";
    case S_IFIFO:
      return "a FIFO";
    case S_IFSOCK:
      return "a socket";
    default:
      return "a device";
  }
}

}  // namespace lazyrope
