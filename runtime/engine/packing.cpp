#include "runtime/engine/packing.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "cache/error.h"

namespace lazyrope {
namespace {

constexpr const char* kCompileTime = "compile_ms";

bool are_equal(const Entry& a, const Entry& b) {
  return a.facts == b.facts && a.payload == b.payload;
}

Unpacked outcome_of(const DecodedEntry& packed, const DiskStore& store) {
  LoadResult present = store.load(packed.key);
  if (!present.entry) return Unpacked::kAdded;
  return are_equal(packed_form(std::move(*present.entry)), packed_form(packed.entry))
             ? Unpacked::kFound
             : Unpacked::kReplaced;
}

}  // namespace

std::string_view to_string(Unpacked outcome) {
  switch (outcome) {
    case Unpacked::kAdded:
      return "added";
    case Unpacked::kFound:
      return "found";
    case Unpacked::kReplaced:
      return "replaced";
  }
  return "?";
}

Entry packed_form(Entry entry) {
  nlohmann::json facts =
      nlohmann::json::parse(entry.facts, /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (!facts.is_object()) return entry;
  if (const auto time = facts.find(kCompileTime); time != facts.end()) *time = 0;
  entry.facts = facts.dump();
  return entry;
}

void add_to_pack(PackWriter& writer, const DiskStore& store, const std::vector<Key>& keys) {
  for (const Key& key : keys) {
    LoadResult loaded = store.load(key);
    if (!loaded.entry)
      throw CacheError(
          fmt::format("the entry {} cannot be packed: {}", key.hex(), loaded.miss_reason));
    writer.add(key, packed_form(std::move(*loaded.entry)));
  }
}

std::vector<PackedEntry> entries_of(const Pack& pack, const DiskStore* store) {
  std::vector<PackedEntry> entries;
  for (std::size_t i = 0; i < pack.manifest().size(); ++i) {
    const DecodedEntry packed = pack.read(i);
    entries.push_back({pack.manifest()[i].key, pack.manifest()[i].bytes, packed.entry.facts,
                       store == nullptr ? Unpacked::kAdded : outcome_of(packed, *store)});
  }
  return entries;
}

void unpack(const Pack& pack, const std::vector<PackedEntry>& entries, const DiskStore& store) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].outcome == Unpacked::kFound) continue;
    const DecodedEntry packed = pack.read(i);
    const StoreResult stored = store.store(packed.key, packed.entry);
    if (!stored.stored)
      throw CacheError(
          fmt::format("the entry {} is not stored: {}", packed.key.hex(), stored.reason));
  }
}

}  // namespace lazyrope
