#include "cache/pins.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "cache/byte_io.h"
#include "cache/error.h"
#include "cache/file_io.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "pins";
constexpr const char* kExtension = ".json";
constexpr std::size_t kLongestPinName = 64;

bool is_pin_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

fs::path path_of(const fs::path& root, std::string_view name) {
  if (root.empty()) throw CacheError("no cache directory is set");
  if (name.empty() || name.size() > kLongestPinName || name.front() == '.' ||
      !std::ranges::all_of(name, is_pin_character))
    throw CacheError(
        fmt::format("the name of a pin has 1 to {} characters out of a-z, A-Z, 0-9, '_', '-' and "
                    "'.', and does not begin with '.'; '{}' is none",
                    kLongestPinName, name));
  return root / kFolder / fmt::format("{}{}", name, kExtension);
}

Pin read_pin(const fs::path& path, const FileTrust& trust) {
  try {
    const auto bytes = read_trusted_file(path, kMaxManifestBytes, trust);
    return {path.stem().string(), bytes ? keys_in_manifest(text_of(*bytes)) : KeySet{}};
  } catch (const CacheError& error) {
    throw CacheError(fmt::format("the pin {} cannot be used, so nothing is removed: {}",
                                 path.native(), error.what()));
  }
}

std::vector<fs::path> pin_files_in(const fs::path& root) {
  std::vector<fs::path> files;
  if (root.empty()) return files;
  std::error_code error;
  for (fs::directory_iterator it(root / kFolder, error), end; !error && it != end;
       it.increment(error))
    if (it->path().extension() == kExtension) files.push_back(it->path());
  if (error && error != std::errc::no_such_file_or_directory)
    throw CacheError(fmt::format("cannot list {}: {}", (root / kFolder).native(), error.message()));
  std::ranges::sort(files);
  return files;
}

}  // namespace

std::vector<Pin> pins_in(const fs::path& root, const FileTrust& trust) {
  std::vector<Pin> pins;
  for (const fs::path& file : pin_files_in(root)) pins.push_back(read_pin(file, trust));
  return pins;
}

KeySet pinned_keys(const fs::path& root, const FileTrust& trust) {
  KeySet keys;
  for (Pin& pin : pins_in(root, trust)) keys.merge(pin.keys);
  return keys;
}

void write_pin(const fs::path& root, const Pin& pin) {
  const fs::path path = path_of(root, pin.name);
  create_own_directories(path.parent_path());
  publish_file(path, bytes_of(manifest_of(pin.keys)));
}

void remove_pin(const fs::path& root, const std::string& name) {
  const fs::path path = path_of(root, name);
  if (::unlink(path.c_str()) == 0) return;
  if (errno != ENOENT) throw CacheError(failure_text("remove", path));
  std::vector<std::string> names;
  for (const fs::path& file : pin_files_in(root)) names.push_back(file.stem().string());
  throw CacheError(fmt::format("there is no pin '{}'; the pins of {} are: {}", name, root.native(),
                               names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
}

}  // namespace lazyrope
