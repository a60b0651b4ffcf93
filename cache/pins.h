#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cache/file_trust.h"
#include "cache/manifest.h"

// A pin keeps entries of a cache from being pruned. It is the file `<root>/pins/<name>.json`, a
// manifest that keys_in_manifest() reads. All functions throw CacheError.
namespace lazyrope {

struct Pin {
  std::string name;
  KeySet keys;
};

// Returns the pins of the cache directory `root`, sorted by name. A pin that cannot be read is an
// error, so that its entries are never removed by mistake. `trust` says whose files are read.
std::vector<Pin> pins_in(const std::filesystem::path& root, const FileTrust& trust = {});

// Returns the keys of all pins.
KeySet pinned_keys(const std::filesystem::path& root, const FileTrust& trust = {});

// Writes the pin, in place of any of its name. A name has 1 to 64 characters out of a-z, A-Z, 0-9,
// '_', '-' and '.', and does not begin with '.'. The keys need not be in the cache.
void write_pin(const std::filesystem::path& root, const Pin& pin);

// Removes the pin. Throws CacheError if there is none of that name.
void remove_pin(const std::filesystem::path& root, const std::string& name);

}  // namespace lazyrope
