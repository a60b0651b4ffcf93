#include "cache/entry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cache/byte_io.h"
#include "cache/error.h"
#include "cache/sha256.h"

namespace lazyrope {
namespace {

using Bytes = ByteSpan;

constexpr std::string_view kMagic = "LAZYROPE";
constexpr std::uint32_t kFormat = 1;
constexpr std::size_t kFormatAt = 8;
constexpr std::size_t kChecksumAt = 12;
constexpr std::size_t kChecksumBytes = 32;
constexpr std::size_t kLengthsAt = kChecksumAt + kChecksumBytes;
constexpr std::size_t kHeaderBytes = 68;

struct Lengths {
  std::size_t fields;
  std::size_t facts;
  std::size_t payload;

  std::size_t file() const { return kHeaderBytes + fields + facts + payload; }
};

void check_facts(std::string_view facts) {
  if (!facts.empty() && !nlohmann::json::accept(facts)) throw CacheError("the facts are not JSON");
}

nlohmann::json parse_fields(Bytes bytes) {
  auto json = nlohmann::json::parse(text_of(bytes), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw CacheError("the key fields are not JSON");
  return json;
}

std::array<std::byte, kChecksumBytes> checksum_of(Bytes file) {
  return std::bit_cast<std::array<std::byte, kChecksumBytes>>(sha256(file.subspan(kLengthsAt)));
}

std::size_t read_length(Bytes in) {
  const auto length = read_integer<std::uint64_t>(in);
  if (length > kMaxEntryBytes) {
    throw CacheError(fmt::format("bad header: a length of {} bytes; at most {} are allowed", length,
                                 kMaxEntryBytes));
  }
  return length;
}

Lengths read_header(Bytes file) {
  if (file.size() < kHeaderBytes) {
    throw CacheError(
        fmt::format("truncated: {} bytes; the header alone has {}", file.size(), kHeaderBytes));
  }
  if (!std::ranges::equal(file.first(kMagic.size()), bytes_of(kMagic))) {
    throw CacheError("not a cache entry of lazyrope");
  }
  const auto format = read_integer<std::uint32_t>(file.subspan(kFormatAt));
  if (format != kFormat) {
    throw CacheError(
        fmt::format("format {}; this version of lazyrope reads format {}", format, kFormat));
  }
  const Bytes lengths = file.subspan(kLengthsAt);
  return {read_length(lengths), read_length(lengths.subspan(8)), read_length(lengths.subspan(16))};
}

void check_size_and_checksum(Bytes file, const Lengths& lengths) {
  if (file.size() < lengths.file()) {
    throw CacheError(fmt::format("truncated: {} bytes of {}", file.size(), lengths.file()));
  }
  if (file.size() > lengths.file()) {
    throw CacheError(
        fmt::format("{} bytes after the end of the entry", file.size() - lengths.file()));
  }
  if (!std::ranges::equal(file.subspan(kChecksumAt, kChecksumBytes), checksum_of(file))) {
    throw CacheError("checksum mismatch");
  }
}

Key read_key(Bytes file, const Lengths& lengths, std::string_view key_hex) {
  if (file.size() < kHeaderBytes + lengths.fields) {
    throw CacheError(fmt::format("truncated: {} bytes of {}", file.size(), lengths.file()));
  }
  const auto fields = parse_fields(file.subspan(kHeaderBytes, lengths.fields));
  const auto is_text = [](const nlohmann::json& value) { return value.is_string(); };
  if (!fields.is_object() || !std::ranges::all_of(fields, is_text)) {
    throw CacheError("the key fields are not a JSON object of strings");
  }
  Key key = Key::from_fields(fields.get<KeyFields>());
  if (key.hex() != key_hex) throw CacheError(fmt::format("it belongs to the key {}", key.hex()));
  return key;
}

}  // namespace

std::vector<std::byte> encode_entry(const Key& key, const Entry& entry) {
  const std::string fields = nlohmann::json(key.fields()).dump();
  check_facts(entry.facts);
  const Lengths lengths{fields.size(), entry.facts.size(), entry.payload.size()};
  if (lengths.file() > kMaxEntryBytes) {
    throw CacheError(fmt::format("the entry has {} bytes; at most {} are allowed", lengths.file(),
                                 kMaxEntryBytes));
  }
  std::vector<std::byte> file(lengths.file());
  std::span<std::byte> room(file);
  put_bytes(room, bytes_of(kMagic));
  put_integer(room, kFormat);
  const auto checksum = room.first<kChecksumBytes>();
  room = room.subspan(kChecksumBytes);
  for (const std::uint64_t length : {lengths.fields, lengths.facts, lengths.payload}) {
    put_integer(room, length);
  }
  put_bytes(room, bytes_of(fields));
  put_bytes(room, bytes_of(entry.facts));
  put_bytes(room, entry.payload);
  std::ranges::copy(checksum_of(file), checksum.begin());
  return file;
}

DecodedEntry decode_entry(std::vector<std::byte> file, std::string_view key_hex) {
  const Lengths lengths = read_header(file);
  check_size_and_checksum(file, lengths);
  Key key = read_key(file, lengths, key_hex);
  const std::size_t facts_at = kHeaderBytes + lengths.fields;
  std::string facts(text_of(Bytes(file).subspan(facts_at, lengths.facts)));
  check_facts(facts);
  const std::size_t payload_at = facts_at + lengths.facts;
  file.erase(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(payload_at));
  return {std::move(key), {std::move(facts), std::move(file)}};
}

DecodedEntry decode_start(std::span<const std::byte> start_of_file, std::string_view key_hex) {
  const Lengths lengths = read_header(start_of_file);
  DecodedEntry start = {read_key(start_of_file, lengths, key_hex), {}};
  const std::size_t facts_at = kHeaderBytes + lengths.fields;
  if (start_of_file.size() - facts_at >= lengths.facts)
    start.entry.facts = text_of(start_of_file.subspan(facts_at, lengths.facts));
  return start;
}

Key decode_key(std::span<const std::byte> start_of_file, std::string_view key_hex) {
  return read_key(start_of_file, read_header(start_of_file), key_hex);
}

}  // namespace lazyrope
