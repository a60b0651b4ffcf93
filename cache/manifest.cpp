#include "cache/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cache/entry.h"
#include "cache/error.h"
#include "cache/key.h"

namespace lazyrope {
namespace {

using Json = nlohmann::json;

constexpr const char* kManifestFormat = "lazyrope pack 1";

[[noreturn]] void refuse(std::string_view problem) {
  throw CacheError(fmt::format("bad manifest: {}", problem));
}

std::string text_at(const Json& object, const char* name) {
  if (!object.is_object()) return "";
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Returns the list "entries" of a manifest.
Json entries_in(std::string_view text) {
  Json json = Json::parse(text, /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) refuse("it is no JSON object");
  const auto entries = json.find("entries");
  if (entries == json.end() || !entries->is_array()) refuse("it has no list \"entries\"");
  return std::move(*entries);
}

// An entry's name is its key and nothing else, so no manifest can name a path.
std::string key_in(const Json& entry) {
  std::string key = text_at(entry, "key");
  if (!is_key_hex(key)) refuse("an entry's key is not 64 characters of 0-9 and a-f");
  return key;
}

ManifestEntry entry_in(const Json& json) {
  ManifestEntry entry{key_in(json), 0, text_at(json, "sha256")};
  if (!is_key_hex(entry.sha256)) refuse(fmt::format("{} has no SHA-256", entry.key));
  const auto bytes = json.find("bytes");
  if (bytes == json.end() || !bytes->is_number_unsigned())
    refuse(fmt::format("{} has no size", entry.key));
  entry.bytes = bytes->get<std::uint64_t>();
  if (entry.bytes > kMaxEntryBytes)
    refuse(fmt::format("{} has {} bytes; at most {} are allowed", entry.key, entry.bytes,
                       kMaxEntryBytes));
  return entry;
}

}  // namespace

std::string encode_manifest(const std::vector<ManifestEntry>& entries) {
  Json list = Json::array();
  for (const ManifestEntry& entry : entries)
    list.push_back({{"key", entry.key}, {"bytes", entry.bytes}, {"sha256", entry.sha256}});
  std::string text = Json{{"format", kManifestFormat}, {"entries", std::move(list)}}.dump();
  if (text.size() > kMaxManifestBytes)
    throw CacheError(
        fmt::format("the manifest of {} entries has {} bytes; at most {} are allowed: make "
                    "several packs",
                    entries.size(), text.size(), kMaxManifestBytes));
  return text;
}

std::vector<ManifestEntry> decode_manifest(std::string_view text) {
  std::vector<ManifestEntry> entries;
  for (const Json& entry : entries_in(text)) entries.push_back(entry_in(entry));
  const auto is_after = [](const ManifestEntry& a, const ManifestEntry& b) {
    return a.key >= b.key;
  };
  if (std::ranges::adjacent_find(entries, is_after) != entries.end())
    refuse("its keys are not sorted, or one is there twice");
  // The comparison refuses unknown members, spaces and repeated names all at once.
  if (encode_manifest(entries) != text) refuse("it is not in the form that lazyrope writes");
  return entries;
}

KeySet keys_in_manifest(std::string_view text) {
  KeySet keys;
  for (const Json& entry : entries_in(text)) keys.insert(key_in(entry));
  return keys;
}

std::string manifest_of(const KeySet& keys) {
  Json list = Json::array();
  for (const std::string& key : keys) list.push_back({{"key", key}});
  return Json{{"entries", std::move(list)}}.dump(1) + "\n";
}

}  // namespace lazyrope
