#include "cache/disk_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ranges>
#include <system_error>
#include <tuple>
#include <utility>

#include "cache/error.h"
#include "cache/file_io.h"
#include "cache/pins.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using std::chrono::system_clock;

constexpr std::size_t kKeyCharacters = 64;
constexpr std::size_t kStartOfFileBytes = 16 << 10;
constexpr std::chrono::hours kLeftoverIsStale{1};
constexpr char kEntryExtension[] = ".lzr";
constexpr char kLockExtension[] = ".lock";
constexpr char kNoRoot[] = "no cache directory is set";

enum class Kind { kEntry, kTemporary, kLock, kClaim };

struct StoredFile {
  fs::path path;
  Kind kind;
  mode_t mode;
  std::uint64_t bytes;  // zero unless it is a regular file
  system_clock::time_point last_use;

  bool is_regular() const { return S_ISREG(mode); }
  std::string key() const { return path.filename().native().substr(0, kKeyCharacters); }
};

// Names are "<key>.lzr", "<key>.lock", "<key>.claim", or "<key>.XXXXXX.tmp" as publish_file makes
// it.
std::optional<Kind> kind_of(const std::string& name) {
  if (!is_key_hex(std::string_view(name).substr(0, kKeyCharacters))) return std::nullopt;
  const std::string_view rest = std::string_view(name).substr(kKeyCharacters);
  if (rest == kEntryExtension) return Kind::kEntry;
  if (rest == kLockExtension) return Kind::kLock;
  if (rest == kClaimExtension) return Kind::kClaim;
  if (rest.size() == 11 && rest.starts_with('.') && rest.ends_with(".tmp")) return Kind::kTemporary;
  return std::nullopt;
}

system_clock::time_point to_time_point(const timespec& time) {
  const auto since_epoch =
      std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  return system_clock::time_point(std::chrono::duration_cast<system_clock::duration>(since_epoch));
}

std::optional<StoredFile> examine(const fs::path& path) {
  const auto kind = kind_of(path.filename().native());
  struct stat status = {};
  if (!kind || ::lstat(path.c_str(), &status) != 0) return std::nullopt;
  const auto bytes = S_ISREG(status.st_mode) ? static_cast<std::uint64_t>(status.st_size) : 0;
  return StoredFile{path, *kind, status.st_mode, bytes, to_time_point(status.st_mtim)};
}

std::vector<StoredFile> files_in(const fs::path& root) {
  std::vector<StoredFile> files;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    if (auto file = examine(it->path())) files.push_back(std::move(*file));
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw CacheError(fmt::format("cannot list {}: {}", root.native(), error.message()));
  }
  return files;
}

// Returns the entries, the most recently used first.
std::vector<StoredFile> entries_in(const fs::path& root) {
  auto entries = files_in(root);
  std::erase_if(entries, [](const StoredFile& file) { return file.kind != Kind::kEntry; });
  std::ranges::sort(entries, [](const StoredFile& a, const StoredFile& b) {
    return std::tie(b.last_use, a.path) < std::tie(a.last_use, b.path);
  });
  return entries;
}

std::uint64_t total_bytes(const std::vector<StoredFile>& files) {
  return std::accumulate(
      files.begin(), files.end(), std::uint64_t{0},
      [](std::uint64_t sum, const StoredFile& file) { return sum + file.bytes; });
}

bool remove_file(const fs::path& path) {
  if (::unlink(path.c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  throw CacheError(failure_text("remove", path));
}

// Returns false if the folder is not empty.
bool remove_folder(const fs::path& path) {
  if (::rmdir(path.c_str()) == 0 || errno == ENOENT) return true;
  if (errno == ENOTEMPTY || errno == EEXIST) return false;
  throw CacheError(failure_text("remove", path));
}

// Removes the file, and counts an entry unless another process has removed it already.
void remove(const StoredFile& file, Removed& removed) {
  if (S_ISDIR(file.mode)) {
    if (!remove_folder(file.path)) return removed.remaining_folders.push_back(file.path.native());
  } else if (!remove_file(file.path)) {
    return;
  }
  if (file.kind != Kind::kEntry) return;
  removed.keys.push_back(file.key());
  removed.bytes += file.bytes;
}

// Removes the lock file if no process holds the lock: a FileLock removes its file on release.
void remove_unheld_lock(const fs::path& path) {
  (void)FileLock::acquire(path, std::chrono::milliseconds(0));
}

// A date in the future comes from a clock that was wrong, here or on a file server.
bool is_stale(const StoredFile& file) {
  const auto age = system_clock::now() - file.last_use;
  return age > kLeftoverIsStale || age < -kLeftoverIsStale;
}

void remove_leftovers(const std::vector<StoredFile>& files, bool also_fresh) {
  for (const StoredFile& file : files) {
    if (!file.is_regular()) continue;
    if (file.kind == Kind::kLock) remove_unheld_lock(file.path);
    const bool has_age = file.kind == Kind::kTemporary || file.kind == Kind::kClaim;
    if (has_age && (also_fresh || is_stale(file))) remove_file(file.path);
  }
}

// Returns nullopt if another process has removed the file meanwhile.
std::optional<ListedEntry> list_entry(const StoredFile& file, const FileTrust& trust) {
  ListedEntry listed{file.key(), file.bytes, file.last_use, {}, {}, {}};
  try {
    auto bytes = read_trusted_file(file.path, kMaxEntryBytes, trust);
    if (!bytes) return std::nullopt;
    listed.bytes = bytes->size();  // those of the target, if the file is a link
    DecodedEntry decoded = decode_entry(std::move(*bytes), listed.key);
    listed.fields = decoded.key.fields();
    listed.facts = std::move(decoded.entry.facts);
  } catch (const CacheError& error) {
    listed.error = error.what();
  }
  return listed;
}

// Reads only the start of the file. The fields need no checksum, because the key is their digest.
std::optional<Key> key_in(const StoredFile& file, const FileTrust& trust) {
  try {
    const auto bytes = read_trusted_file(file.path, kStartOfFileBytes, trust);
    if (!bytes) return std::nullopt;
    return decode_key(*bytes, file.key());
  } catch (const CacheError&) {
    return std::nullopt;  // a bad entry is nearest to no key
  }
}

std::vector<std::string> differing_names(const KeyFields& a, const KeyFields& b) {
  std::vector<std::pair<std::string, std::string>> in_one_only;
  std::ranges::set_symmetric_difference(a, b, std::back_inserter(in_one_only));
  std::vector<std::string> names;
  for (const auto& [name, value] : in_one_only) {
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return names;
}

// Returns the fields of the stored key, and the texts among its facts that have the asked names.
// Returns nullopt if the start of the file cannot be read: a bad entry is nearest to no key.
std::optional<KeyFields> fields_and_facts(const StoredFile& file, const KeyFields& asked,
                                          const FileTrust& trust) {
  try {
    const auto bytes = read_trusted_file(file.path, kStartOfFileBytes, trust);
    if (!bytes) return std::nullopt;
    const DecodedEntry start = decode_start(*bytes, file.key());
    KeyFields fields = start.key.fields();
    const auto facts = nlohmann::json::parse(start.entry.facts, /*callback=*/nullptr,
                                             /*allow_exceptions=*/false);
    for (const auto& [name, value] : asked)
      if (facts.is_object() && facts.contains(name) && facts[name].is_string())
        fields.insert_or_assign(name, facts[name].get<std::string>());
    return fields;
  } catch (const CacheError&) {
    return std::nullopt;
  }
}

std::optional<Nearest> nearest_in(const fs::path& root, const Key& key, const KeyFields& facts,
                                  const FileTrust& trust) {
  KeyFields wanted = facts;
  wanted.insert(key.fields().begin(), key.fields().end());
  std::optional<Nearest> nearest;
  for (const StoredFile& file : entries_in(root)) {
    const auto stored = fields_and_facts(file, facts, trust);
    if (!stored || file.key() == key.hex()) continue;
    auto differing = differing_names(wanted, *stored);
    if (nearest && nearest->differing.size() <= differing.size()) continue;
    nearest = Nearest{file.key(), *stored, std::move(differing)};
  }
  return nearest;
}

}  // namespace

DiskStore::DiskStore(fs::path root, FileTrust trust, FlockFunction flock_function)
    : root_(std::move(root)), trust_(std::move(trust)), flock_(flock_function) {
  std::error_code no_working_directory;
  auto absolute = fs::absolute(root_, no_working_directory);
  if (!root_.empty() && !no_working_directory) root_ = std::move(absolute);
}

fs::path DiskStore::path_of(std::string_view key_hex, const char* extension) const {
  return root_ / fmt::format("{}{}", key_hex, extension);
}

LoadResult DiskStore::load(const Key& key) const {
  LoadResult result = read(key);
  // This sets the time of last use to now. It may fail, on a read-only file system for example,
  // where nothing is pruned either.
  if (result.entry)
    ::utimensat(AT_FDCWD, path_of(key.hex(), kEntryExtension).c_str(), nullptr,
                AT_SYMLINK_NOFOLLOW);
  return result;
}

LoadResult DiskStore::read(const Key& key) const {
  if (root_.empty()) return {std::nullopt, kNoRoot};
  const fs::path path = path_of(key.hex(), kEntryExtension);
  try {
    auto file = read_trusted_file(path, kMaxEntryBytes, trust_);
    if (!file) return {std::nullopt, "absent"};
    const std::uint64_t bytes = file->size();
    Entry entry = decode_entry(std::move(*file), key.hex()).entry;
    return {.entry = std::move(entry), .bytes = bytes};
  } catch (const std::exception& error) {
    return {std::nullopt, fmt::format("{}: {}", path.native(), error.what()), true};
  }
}

StoreResult DiskStore::store(const Key& key, const Entry& entry) const {
  if (root_.empty()) return {false, kNoRoot};
  try {
    const auto file = encode_entry(key, entry);
    const fs::path path = path_of(key.hex(), kEntryExtension);
    create_own_directories(root_);
    publish_file(path, file);
    check_stored(path);
    return {.stored = true, .bytes = file.size()};
  } catch (const std::exception& error) {
    return {false, error.what()};
  }
}

void DiskStore::check_stored(const fs::path& path) const {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) return;  // another process has removed it already
  try {
    trust_.check_file(status);
  } catch (const CacheError& error) {
    ::unlink(path.c_str());
    throw CacheError(fmt::format(
        "the file system forces the owner or the mode of {}, so no process would use it (mount it "
        "with uid={} and file_mode=0644): {}",
        path.native(), ::geteuid(), error.what()));
  }
}

void DiskStore::check_writable() const {
  if (root_.empty()) throw CacheError(kNoRoot);
  create_own_directories(root_);
  lazyrope::check_writable(root_);
}

FileLock DiskStore::lock(const Key& key, std::chrono::milliseconds timeout,
                         const OnPause& on_pause) const {
  if (root_.empty()) return FileLock::not_held(kNoRoot);
  try {
    create_own_directories(root_);
  } catch (const CacheError& error) {
    return FileLock::not_held(error.what());
  }
  return FileLock::acquire(path_of(key.hex(), kLockExtension), timeout, on_pause, flock_);
}

std::optional<Nearest> DiskStore::nearest(const Key& key, const KeyFields& facts) const {
  try {
    return nearest_in(root_, key, facts, trust_);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::vector<ListedEntry> DiskStore::list() const {
  std::vector<ListedEntry> listing;
  for (const StoredFile& file : entries_in(root_)) {
    if (auto listed = list_entry(file, trust_)) listing.push_back(std::move(*listed));
  }
  return listing;
}

std::vector<Key> DiskStore::keys() const {
  std::vector<Key> keys;
  for (const StoredFile& file : entries_in(root_))
    if (auto key = key_in(file, trust_)) keys.push_back(std::move(*key));
  return keys;
}

std::size_t DiskStore::count() const { return entries_in(root_).size(); }

std::uint64_t DiskStore::size_bytes() const { return total_bytes(entries_in(root_)); }

Removed DiskStore::clear() const {
  Removed removed;
  for (const StoredFile& file : files_in(root_))
    if (!file.is_regular() || file.kind == Kind::kEntry) remove(file, removed);
  remove_leftovers(files_in(root_), /*also_fresh=*/true);
  return removed;
}

Removed DiskStore::prune(const PruneLimits& limits) const {
  remove_leftovers(files_in(root_), /*also_fresh=*/false);
  std::vector<StoredFile> entries = entries_in(root_);
  std::erase_if(entries, [](const StoredFile& file) { return !file.is_regular(); });
  const KeySet pinned = pinned_keys(root_, trust_);
  std::uint64_t bytes_left = total_bytes(entries);
  Removed removed;
  for (const StoredFile& entry : std::views::reverse(entries)) {
    if (bytes_left <= limits.max_bytes && entry.last_use >= limits.oldest_use) break;
    if (pinned.contains(entry.key()) || limits.keep.contains(entry.key())) continue;
    remove(entry, removed);
    bytes_left -= entry.bytes;
  }
  removed.excess_bytes = bytes_left - std::min(bytes_left, limits.max_bytes);
  return removed;
}

Removed DiskStore::prune(std::uint64_t max_bytes) const {
  return prune(PruneLimits{.max_bytes = max_bytes});
}

Removed DiskStore::remove_irregular() const {
  Removed removed;
  for (const StoredFile& file : files_in(root_)) {
    const bool is_in_use = S_ISLNK(file.mode) && trust_.follows_links();
    if (!file.is_regular() && !is_in_use) remove(file, removed);
  }
  return removed;
}

}  // namespace lazyrope
