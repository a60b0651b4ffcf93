#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/disk_store.h"
#include "cache/entry.h"
#include "cache/pack.h"

namespace lazyrope {

// Returns the entry as a pack has it: its facts say that compiling took no time. So the same kernel
// has the same bytes, whichever machine compiled it. The facts are JSON with sorted names.
Entry packed_form(Entry entry);

// Adds the entries to a pack, in packed form. Throws CacheError if one cannot be read.
void add_to_pack(PackWriter& writer, const DiskStore& store, const std::vector<Key>& keys);

enum class Unpacked {
  kAdded,     // the store had no good entry of the key
  kFound,     // the store had the same entry
  kReplaced,  // the store had another good entry
};

std::string_view to_string(Unpacked outcome);

// One entry of a pack, for listings.
struct PackedEntry {
  std::string key;
  std::uint64_t bytes = 0;
  std::string facts;  // JSON, or empty
  Unpacked outcome = Unpacked::kAdded;
};

// Reads and verifies all entries of the pack. With a store, finds out what unpack() will do with
// each of them; without one, all are new. Throws CacheError for a bad entry.
std::vector<PackedEntry> entries_of(const Pack& pack, const DiskStore* store = nullptr);

// Stores the entries of a pack, which entries_of() listed, apart from those that the store has.
// Each is verified once more, so a file that changes meanwhile does no harm. Throws CacheError if
// an entry cannot be stored; those before it then are.
void unpack(const Pack& pack, const std::vector<PackedEntry>& entries, const DiskStore& store);

}  // namespace lazyrope
