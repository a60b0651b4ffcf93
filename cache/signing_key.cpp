#include "cache/signing_key.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <optional>
#include <sstream>

#include "cache/error.h"
#include "cache/file_io.h"
#include "cache/given_file.h"
#include "cache/key.h"
#include "cache/sha256.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using KeyBytes = std::array<std::uint8_t, 32>;

constexpr std::string_view kPublicPrefix = "lazyrope-public-key:";
constexpr std::string_view kSecretPrefix = "lazyrope-secret-key:";
constexpr std::size_t kMaxKeyFileBytes = 64 << 10;
constexpr mode_t kPublicMode = 0644;

std::optional<KeyBytes> parse_key(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix) || !is_key_hex(text.substr(prefix.size()))) return std::nullopt;
  text.remove_prefix(prefix.size());
  KeyBytes key = {};
  for (std::size_t i = 0; i < key.size(); ++i)
    std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, key[i], 16);
  return key;
}

std::vector<std::string> lines_of(const fs::path& path) {
  std::istringstream text{std::string(text_of(read_given_file(path, kMaxKeyFileBytes)))};
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);)
    if (!line.empty()) lines.push_back(line);
  return lines;
}

// The message does not show the line, which may be a secret.
[[noreturn]] void refuse_file(const fs::path& path, std::string_view needed) {
  throw CacheError(
      fmt::format("{} is no file of a {} key: it needs {}, as `lazyrope keygen` "
                  "writes it",
                  path.native(), needed,
                  needed == "secret" ? "one line \"lazyrope-secret-key:HEX\""
                                     : "lines \"lazyrope-public-key:HEX\""));
}

void check_absent(const fs::path& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) == 0)
    throw CacheError(
        fmt::format("{} exists already, and a key is never overwritten: give another "
                    "name, or move the file away",
                    path.native()));
}

void write_new_file(const fs::path& path, const std::string& text, mode_t mode) {
  // The file is made with mode 0600, so no other user can ever read a secret in it.
  const auto file = FileDescriptor::open(path, O_WRONLY | O_CREAT | O_EXCL);
  if (!file.is_open()) throw CacheError(failure_text("create", path));
  const bool written =
      ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fchmod(file.get(), mode) == 0 && ::fsync(file.get()) == 0;
  if (written) return;
  const std::string failure = failure_text("write", path);
  ::unlink(path.c_str());
  throw CacheError(failure);
}

}  // namespace

std::string text_of(const PublicKey& key) {
  return fmt::format("{}{}", kPublicPrefix, to_hex(key.bytes));
}

PublicKey write_key_pair(const fs::path& path) {
  const fs::path public_path = path.native() + ".pub";
  check_absent(path);
  check_absent(public_path);
  const SecretKey secret = make_secret_key();
  const PublicKey key = public_key_of(secret);
  write_new_file(public_path, text_of(key) + "\n", kPublicMode);
  write_new_file(path, fmt::format("{}{}\n", kSecretPrefix, to_hex(secret.seed)),
                 S_IRUSR | S_IWUSR);
  return key;
}

SecretKey read_secret_key(const fs::path& path) {
  const std::vector<std::string> lines = lines_of(path);
  const auto key = lines.size() == 1 ? parse_key(lines.front(), kSecretPrefix) : std::nullopt;
  if (!key) refuse_file(path, "secret");
  return {*key};
}

std::vector<PublicKey> trusted_keys(const std::string& setting) {
  if (setting.empty()) return {};
  if (const auto key = parse_key(setting, kPublicPrefix)) return {{*key}};
  if (setting.starts_with(kPublicPrefix))
    throw CacheError(fmt::format("'{}' is no public key: 64 characters of 0-9 and a-f follow '{}'",
                                 setting, kPublicPrefix));
  std::vector<PublicKey> keys;
  for (const std::string& line : lines_of(setting)) {
    const auto key = parse_key(line, kPublicPrefix);
    if (!key) refuse_file(setting, "public");
    keys.push_back({*key});
  }
  if (keys.empty()) refuse_file(setting, "public");
  return keys;
}

}  // namespace lazyrope
