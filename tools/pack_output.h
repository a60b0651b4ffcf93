#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/engine/packing.h"
#include "tools/output.h"

namespace lazyrope {

// Returns a table with one row per arch: the numbers of kernels and of tuning records, and their
// size.
std::string table_of(const std::vector<PackedEntry>& entries);

// Returns "FILE: 5 kernels, 1 tuning records, 1.2 MiB, signed by KEY".
std::string summary_of(const Pack& pack, const std::vector<PackedEntry>& entries);

// Returns the object of one entry, without its outcome.
OrderedJson json_of(const PackedEntry& entry);

// Returns the object of a pack: file, bytes, signer and entries, which `entry_json` makes.
OrderedJson json_of(const Pack& pack, const std::vector<PackedEntry>& entries,
                    const std::function<OrderedJson(const PackedEntry&)>& entry_json);

}  // namespace lazyrope
