#include "cache/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include "cache/byte_io.h"
#include "cache/error.h"
#include "cache/sha256.h"
#include "cache/signing_key.h"

namespace lazyrope {
namespace {

constexpr std::string_view kPackMagic = "LAZYPACK";
constexpr std::uint32_t kPackFormat = 1;
constexpr std::size_t kPackFormatAt = 8;
constexpr std::size_t kSignerAt = 12;
constexpr std::size_t kSignatureAt = 44;
constexpr std::size_t kDigestAt = 108;
constexpr std::size_t kLengthAt = 140;
constexpr std::size_t kPackHeaderBytes = 148;

struct Header {
  PublicKey signer;
  Signature signature = {};
  Sha256Digest digest = {};
  std::size_t manifest_bytes = 0;

  // An unsigned pack has zeros in both places.
  bool is_signed() const { return signer != PublicKey{} || signature != Signature{}; }
};

template <class Array>
void read_array(ByteSpan in, Array& array) {
  std::ranges::copy(in.first(array.size()), std::as_writable_bytes(std::span(array)).begin());
}

bool is_pack(const GivenFile& file) {
  return file.size() >= kPackMagic.size() && text_of(file.read(0, kPackMagic.size())) == kPackMagic;
}

void check_kind(const GivenFile& file) {
  if (!is_pack(file)) throw CacheError("not a pack of lazyrope");
  if (file.size() < kPackHeaderBytes)
    throw CacheError(
        fmt::format("truncated: {} bytes; the header alone has {}", file.size(), kPackHeaderBytes));
}

Header read_header(const GivenFile& file) {
  check_kind(file);
  const std::vector<std::byte> bytes = file.read(0, kPackHeaderBytes);
  const ByteSpan header(bytes);
  const auto format = read_integer<std::uint32_t>(header.subspan(kPackFormatAt));
  if (format != kPackFormat)
    throw CacheError(fmt::format("pack format {}; this version of lazyrope reads format {}", format,
                                 kPackFormat));
  Header result;
  read_array(header.subspan(kSignerAt), result.signer.bytes);
  read_array(header.subspan(kSignatureAt), result.signature);
  read_array(header.subspan(kDigestAt), result.digest);
  const auto length = read_integer<std::uint64_t>(header.subspan(kLengthAt));
  if (length > kMaxManifestBytes)
    throw CacheError(fmt::format("bad header: a manifest of {} bytes; at most {} are allowed",
                                 length, kMaxManifestBytes));
  result.manifest_bytes = static_cast<std::size_t>(length);
  return result;
}

std::vector<std::byte> read_manifest(const GivenFile& file, const Header& header) {
  if (file.size() < kPackHeaderBytes + header.manifest_bytes)
    throw CacheError(fmt::format("truncated: {} bytes; header and manifest have {}", file.size(),
                                 kPackHeaderBytes + header.manifest_bytes));
  std::vector<std::byte> manifest = file.read(kPackHeaderBytes, header.manifest_bytes);
  if (sha256(manifest) != header.digest) throw CacheError("checksum mismatch of the manifest");
  return manifest;
}

// A signed pack is checked with the key that it names, also if no key is trusted. So damage to a
// signed pack is found in any case.
void check_signature(const Header& header, ByteSpan manifest,
                     const std::vector<PublicKey>& trusted) {
  if (header.is_signed() && !is_signed_by(header.signer, manifest, header.signature))
    throw CacheError("the signature does not fit the manifest");
  if (trusted.empty() || std::ranges::find(trusted, header.signer) != trusted.end()) return;
  std::string keys;
  for (const PublicKey& key : trusted) keys += "\n  " + text_of(key);
  throw CacheError(fmt::format("{}, and only packs that one of these keys signed are accepted:{}",
                               header.is_signed()
                                   ? fmt::format("it is signed by {}", text_of(header.signer))
                                   : "it is not signed",
                               keys));
}

void check_size(const GivenFile& file, std::uint64_t needed) {
  if (file.size() < needed)
    throw CacheError(fmt::format("truncated: {} bytes of {}", file.size(), needed));
  if (file.size() > needed)
    throw CacheError(fmt::format("{} bytes after the end of the pack", file.size() - needed));
}

}  // namespace

void PackWriter::add(const Key& key, const Entry& entry) {
  files_.insert_or_assign(key.hex(), encode_entry(key, entry));
}

std::vector<std::byte> PackWriter::finish(const std::optional<SecretKey>& signer) {
  std::vector<ManifestEntry> entries;
  std::size_t total = 0;
  for (const auto& [key, file] : files_) {
    entries.push_back({key, file.size(), to_hex(sha256(file))});
    total += file.size();
  }
  const std::string text = encode_manifest(entries);
  const ByteSpan manifest = bytes_of(text);
  const PublicKey public_key = signer ? public_key_of(*signer) : PublicKey{};
  const Signature signature = signer ? sign(*signer, manifest) : Signature{};
  std::vector<std::byte> pack(kPackHeaderBytes + manifest.size() + total);
  std::span<std::byte> room(pack);
  put_bytes(room, bytes_of(kPackMagic));
  put_integer(room, kPackFormat);
  put_bytes(room, std::as_bytes(std::span(public_key.bytes)));
  put_bytes(room, std::as_bytes(std::span(signature)));
  const Sha256Digest digest = sha256(manifest);
  put_bytes(room, std::as_bytes(std::span(digest)));
  put_integer(room, std::uint64_t{manifest.size()});
  put_bytes(room, manifest);
  // Each file is freed once it is copied, because a pack may be as large as a whole cache.
  for (; !files_.empty(); files_.erase(files_.begin())) put_bytes(room, files_.begin()->second);
  return pack;
}

Pack Pack::open(const std::filesystem::path& path, const std::vector<PublicKey>& trusted) {
  GivenFile file(path);
  try {
    return {std::move(file), trusted};
  } catch (const CacheError& error) {
    throw CacheError(fmt::format("{}: {}", path.native(), error.what()));
  }
}

Pack::Pack(GivenFile file, const std::vector<PublicKey>& trusted) : file_(std::move(file)) {
  const Header header = read_header(file_);
  const std::vector<std::byte> manifest = read_manifest(file_, header);
  check_signature(header, manifest, trusted);
  if (header.is_signed()) signer_ = header.signer;
  manifest_ = decode_manifest(text_of(manifest));
  std::uint64_t end = kPackHeaderBytes + manifest.size();
  for (const ManifestEntry& entry : manifest_) {
    offsets_.push_back(end);
    end += entry.bytes;
  }
  check_size(file_, end);
}

DecodedEntry Pack::read(std::size_t index) const {
  const ManifestEntry& entry = manifest_.at(index);
  try {
    auto file = file_.read(offsets_.at(index), static_cast<std::size_t>(entry.bytes));
    if (to_hex(sha256(file)) != entry.sha256)
      throw CacheError("its checksum is not the checksum that the manifest names");
    return decode_entry(std::move(file), entry.key);
  } catch (const CacheError& error) {
    throw CacheError(fmt::format("{}: entry {}: {}", path().native(), entry.key, error.what()));
  }
}

LoadResult Pack::load(const Key& key) const {
  const auto at = std::ranges::lower_bound(manifest_, key.hex(), {}, &ManifestEntry::key);
  if (at == manifest_.end() || at->key != key.hex()) return {std::nullopt, "absent", false};
  try {
    return {read(static_cast<std::size_t>(at - manifest_.begin())).entry, {}, false};
  } catch (const std::exception& error) {
    return {std::nullopt, error.what(), true};
  }
}

void Pack::check_entries() const {
  for (std::size_t i = 0; i < manifest_.size(); ++i) (void)read(i);
}

KeySet keys_in_file(const std::filesystem::path& path) {
  KeySet keys;
  if (is_pack(GivenFile(path))) {
    const Pack pack = Pack::open(path);
    for (const ManifestEntry& entry : pack.manifest()) keys.insert(entry.key);
    return keys;
  }
  try {
    return keys_in_manifest(text_of(read_given_file(path, kMaxManifestBytes)));
  } catch (const CacheError& error) {
    throw CacheError(
        fmt::format("{} is neither a pack nor a manifest: {}", path.native(), error.what()));
  }
}

}  // namespace lazyrope
