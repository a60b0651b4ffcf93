#include "cache/disk_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <iterator>
#include <numeric>
#include <system_error>
#include <tuple>
#include <utility>

#include "cache/error.h"
#include "cache/file_io.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using std::chrono::system_clock;

constexpr std::size_t kKeyCharacters = 64;
constexpr std::size_t kStartOfFileBytes = 16 << 10;
constexpr std::chrono::hours kTemporaryFileIsStale{1};
constexpr char kEntryExtension[] = ".lzr";
constexpr char kLockExtension[] = ".lock";
constexpr char kNoRoot[] = "no cache directory is set";

enum class Kind { kEntry, kTemporary, kLock };

struct StoredFile {
  fs::path path;
  Kind kind;
  std::uint64_t bytes;
  system_clock::time_point last_use;

  std::string key() const { return path.filename().native().substr(0, kKeyCharacters); }
};

// Names are "<key>.lzr", "<key>.lock", or "<key>.XXXXXX.tmp" as publish_file makes it.
std::optional<Kind> kind_of(const std::string& name) {
  if (!is_key_hex(std::string_view(name).substr(0, kKeyCharacters))) return std::nullopt;
  const std::string_view rest = std::string_view(name).substr(kKeyCharacters);
  if (rest == kEntryExtension) return Kind::kEntry;
  if (rest == kLockExtension) return Kind::kLock;
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
  if (!kind || ::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return StoredFile{path, *kind, static_cast<std::uint64_t>(status.st_size),
                    to_time_point(status.st_mtim)};
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

// Removes the entry, and counts it unless another process has removed it already.
void remove_entry(const StoredFile& entry, Removed& removed) {
  if (!remove_file(entry.path)) return;
  ++removed.entries;
  removed.bytes += entry.bytes;
}

// Removes the lock file if no process holds the lock: a FileLock removes its file on release.
void remove_unheld_lock(const fs::path& path) {
  (void)FileLock::acquire(path, std::chrono::milliseconds(0));
}

void remove_leftovers(const std::vector<StoredFile>& files, system_clock::time_point newest) {
  for (const StoredFile& file : files) {
    if (file.kind == Kind::kLock) remove_unheld_lock(file.path);
    if (file.kind == Kind::kTemporary && file.last_use <= newest) remove_file(file.path);
  }
}

// Returns nullopt if another process has removed the file meanwhile.
std::optional<ListedEntry> list_entry(const StoredFile& file) {
  ListedEntry listed{file.key(), file.bytes, file.last_use, {}, {}, {}};
  try {
    auto bytes = read_trusted_file(file.path, kMaxEntryBytes);
    if (!bytes) return std::nullopt;
    DecodedEntry decoded = decode_entry(std::move(*bytes), listed.key);
    listed.fields = decoded.key.fields();
    listed.facts = std::move(decoded.entry.facts);
  } catch (const CacheError& error) {
    listed.error = error.what();
  }
  return listed;
}

// Reads only the start of the file. The fields need no checksum, because the key is their digest.
std::optional<Key> key_in(const StoredFile& file) {
  try {
    const auto bytes = read_trusted_file(file.path, kStartOfFileBytes);
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

std::optional<Nearest> nearest_in(const fs::path& root, const Key& key) {
  std::optional<Nearest> nearest;
  for (const StoredFile& file : entries_in(root)) {
    const auto stored = key_in(file);
    if (!stored || stored->hex() == key.hex()) continue;
    auto differing = differing_names(key.fields(), stored->fields());
    if (nearest && nearest->differing.size() <= differing.size()) continue;
    nearest = Nearest{stored->hex(), stored->fields(), std::move(differing)};
  }
  return nearest;
}

}  // namespace

DiskStore::DiskStore(fs::path root) : root_(std::move(root)) {
  std::error_code no_working_directory;
  auto absolute = fs::absolute(root_, no_working_directory);
  if (!root_.empty() && !no_working_directory) root_ = std::move(absolute);
}

fs::path DiskStore::path_of(std::string_view key_hex, const char* extension) const {
  return root_ / fmt::format("{}{}", key_hex, extension);
}

LoadResult DiskStore::load(const Key& key) const {
  if (root_.empty()) return {std::nullopt, kNoRoot, false};
  const fs::path path = path_of(key.hex(), kEntryExtension);
  try {
    auto file = read_trusted_file(path, kMaxEntryBytes);
    if (!file) return {std::nullopt, "absent", false};
    Entry entry = decode_entry(std::move(*file), key.hex()).entry;
    // This sets the time of last use to now. It may fail, on a read-only file system for example,
    // where nothing is pruned either.
    ::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
    return {std::move(entry), {}, false};
  } catch (const std::exception& error) {
    return {std::nullopt, fmt::format("{}: {}", path.native(), error.what()), true};
  }
}

StoreResult DiskStore::store(const Key& key, const Entry& entry) const {
  if (root_.empty()) return {false, kNoRoot};
  try {
    const auto file = encode_entry(key, entry);
    create_own_directories(root_);
    publish_file(path_of(key.hex(), kEntryExtension), file);
    return {true, {}};
  } catch (const std::exception& error) {
    return {false, error.what()};
  }
}

void DiskStore::check_writable() const {
  if (root_.empty()) throw CacheError(kNoRoot);
  create_own_directories(root_);
  lazyrope::check_writable(root_);
}

FileLock DiskStore::lock(const Key& key, std::chrono::milliseconds timeout,
                         const std::function<void()>& on_pause) const {
  if (root_.empty()) return FileLock::not_held(kNoRoot);
  try {
    create_own_directories(root_);
  } catch (const CacheError& error) {
    return FileLock::not_held(error.what());
  }
  return FileLock::acquire(path_of(key.hex(), kLockExtension), timeout, on_pause);
}

std::optional<Nearest> DiskStore::nearest(const Key& key) const {
  try {
    return nearest_in(root_, key);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::vector<ListedEntry> DiskStore::list() const {
  std::vector<ListedEntry> listing;
  for (const StoredFile& file : entries_in(root_)) {
    if (auto listed = list_entry(file)) listing.push_back(std::move(*listed));
  }
  return listing;
}

std::size_t DiskStore::count() const { return entries_in(root_).size(); }

std::uint64_t DiskStore::size_bytes() const { return total_bytes(entries_in(root_)); }

Removed DiskStore::clear() const {
  Removed removed;
  for (const StoredFile& entry : entries_in(root_)) remove_entry(entry, removed);
  remove_leftovers(files_in(root_), system_clock::time_point::max());
  return removed;
}

Removed DiskStore::prune(std::uint64_t max_bytes) const {
  remove_leftovers(files_in(root_), system_clock::now() - kTemporaryFileIsStale);
  auto entries = entries_in(root_);
  std::uint64_t bytes_left = total_bytes(entries);
  Removed removed;
  for (; bytes_left > max_bytes; entries.pop_back()) {
    remove_entry(entries.back(), removed);
    bytes_left -= entries.back().bytes;
  }
  return removed;
}

}  // namespace lazyrope
