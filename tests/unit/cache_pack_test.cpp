// These tests cover packs, their manifests and their signatures.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "cache/error.h"
#include "cache/file_io.h"
#include "cache/pack.h"
#include "cache/sha256.h"
#include "cache/signing_key.h"
#include "runtime/engine/packing.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kLengthAt = 140;
constexpr std::size_t kHeaderBytes = 148;

Key key_of(const std::string& arch) { return KeyBuilder().field("arch", arch).finish(); }

Entry entry_of(const std::string& arch, double compile_ms = 0) {
  const std::string facts =
      fmt::format(R"({{"arch":"{}","compile_ms":{},"entry":"tiny"}})", arch, compile_ms);
  return {facts, Bytes(40, std::byte(arch.size()))};
}

Bytes pack_of(const std::vector<std::string>& archs, const std::optional<SecretKey>& signer = {}) {
  PackWriter writer;
  for (const std::string& arch : archs) writer.add(key_of(arch), entry_of(arch));
  return writer.finish(signer);
}

// Returns the bytes of a pack with this text as its manifest, which has the right digest.
Bytes with_manifest(const std::string& manifest, const Bytes& entries = {}) {
  Bytes pack = pack_of({});
  pack.resize(kHeaderBytes);
  const ByteSpan text = bytes_of(manifest);
  const Sha256Digest digest = sha256(text);
  std::memcpy(pack.data() + 108, digest.data(), digest.size());
  std::span<std::byte> room(pack);
  room = room.subspan(kLengthAt);
  put_integer(room, std::uint64_t{text.size()});
  pack.insert(pack.end(), text.begin(), text.end());
  pack.insert(pack.end(), entries.begin(), entries.end());
  return pack;
}

class CachePackTest : public ::testing::Test {
 protected:
  fs::path write(const Bytes& bytes) const {
    std::ofstream(file_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return file_;
  }

  // Succeeds if the file is refused as a pack with a message that has each of `parts`.
  testing::AssertionResult refuses_file(const std::vector<std::string>& parts,
                                        const std::vector<PublicKey>& trusted = {}) const {
    return throws<CacheError>([&] { Pack::open(file_, trusted).check_entries(); }, parts);
  }
  testing::AssertionResult refuses(const Bytes& bytes, const std::vector<std::string>& parts,
                                   const std::vector<PublicKey>& trusted = {}) const {
    write(bytes);
    return refuses_file(parts, trusted);
  }

  const TemporaryDirectory directory_;
  const fs::path file_ = directory_ / "kernels.lzp";
};

TEST_F(CachePackTest, APackReturnsItsEntries) {
  const Pack pack = Pack::open(write(pack_of({"sm_80", "sm_90a", "sm_120"})));
  ASSERT_EQ(pack.manifest().size(), 3u);
  EXPECT_EQ(pack.signer(), std::nullopt);
  EXPECT_EQ(pack.size_bytes(), fs::file_size(file_));
  for (const char* arch : {"sm_80", "sm_90a", "sm_120"}) {
    const LoadResult loaded = pack.load(key_of(arch));
    ASSERT_TRUE(loaded.entry.has_value()) << loaded.miss_reason;
    EXPECT_EQ(loaded.entry->facts, entry_of(arch).facts);
    EXPECT_EQ(loaded.entry->payload, entry_of(arch).payload);
  }
  const LoadResult absent = pack.load(key_of("sm_89"));
  EXPECT_EQ(absent.miss_reason, "absent");
  EXPECT_FALSE(absent.refused);
}

TEST_F(CachePackTest, APackWithoutEntriesIsGood) {
  EXPECT_TRUE(Pack::open(write(pack_of({}))).manifest().empty());
}

TEST_F(CachePackTest, APackDoesNotDependOnOrderDirectoryOrTime) {
  const auto packed = [&](const std::string& root, const std::vector<std::string>& archs,
                          double compile_ms, std::chrono::hours age) {
    const DiskStore store(directory_ / root);
    std::vector<Key> keys;
    for (const std::string& arch : archs) {
      keys.push_back(key_of(arch));
      EXPECT_TRUE(store.store(keys.back(), entry_of(arch, compile_ms)).stored);
      fs::last_write_time(store.root() / (keys.back().hex() + ".lzr"),
                          fs::file_time_type::clock::now() - age);
    }
    PackWriter writer;
    add_to_pack(writer, store, keys);
    return writer.finish(std::nullopt);
  };
  const auto first = packed("first", {"sm_80", "sm_90a"}, 12.5, std::chrono::hours(1));
  const auto second = packed("elsewhere/second", {"sm_90a", "sm_80"}, 7, std::chrono::hours(99));
  EXPECT_EQ(first, second);
  EXPECT_NE(first, packed("third", {"sm_80", "sm_89"}, 12.5, std::chrono::hours(1)));
}

TEST_F(CachePackTest, EveryByteIsCovered) {
  std::vector<Bytes> packs = {pack_of({"sm_80", "sm_90a"})};
#if LAZYROPE_SIGNATURES
  packs.push_back(pack_of({"sm_80"}, make_secret_key()));
#endif
  for (const Bytes& good : packs) {
    write(good);
    // The bytes are changed in place, because a new file for each of them takes seconds.
    const auto file = FileDescriptor::open(file_, O_RDWR);
    const auto put = [&](std::size_t at, std::byte value) {
      return ::pwrite(file.get(), &value, 1, static_cast<off_t>(at)) == 1;
    };
    for (std::size_t i = 0; i < good.size(); ++i) {
      ASSERT_TRUE(put(i, good[i] ^ std::byte{1}));
      EXPECT_TRUE(refuses_file({file_.string()})) << "byte " << i << " of " << good.size();
      ASSERT_TRUE(put(i, good[i]));
    }
    Pack::open(file_).check_entries();
  }
}

TEST_F(CachePackTest, EveryTruncationAndEveryAdditionIsRefused) {
  Bytes pack = pack_of({"sm_80", "sm_90a"});
  pack.push_back(std::byte{0});
  EXPECT_TRUE(refuses(pack, {"1 bytes after the end of the pack"}));
  fs::resize_file(file_, pack.size() - 1);
  Pack::open(file_).check_entries();
  for (std::size_t length = pack.size() - 1; length-- > 0;) {
    fs::resize_file(file_, length);
    EXPECT_TRUE(refuses_file({length < 8 ? "not a pack of lazyrope" : "truncated"})) << length;
  }
}

TEST_F(CachePackTest, HugeLengthsAreRefusedBeforeAnythingIsRead) {
  Bytes pack = pack_of({"sm_80"});
  std::span<std::byte> room(pack);
  room = room.subspan(kLengthAt);
  put_integer(room, ~std::uint64_t{0});
  EXPECT_TRUE(refuses(pack, {"a manifest of 18446744073709551615 bytes; at most 33554432"}));
  room = std::span<std::byte>(pack).subspan(kLengthAt);
  put_integer(room, std::uint64_t{kMaxManifestBytes});
  EXPECT_TRUE(refuses(pack, {"truncated"}));
  const std::string key = key_of("sm_80").hex();
  const auto of_size = [&](const char* bytes) {
    return with_manifest(fmt::format(
        R"({{"entries":[{{"bytes":{},"key":"{}","sha256":"{}"}}],"format":"lazyrope pack 1"}})",
        bytes, key, key));
  };
  EXPECT_TRUE(
      refuses(of_size("18446744073709551615"), {"has 18446744073709551615 bytes; at most"}));
  EXPECT_TRUE(refuses(of_size("268435456"), {"truncated"}));
  EXPECT_TRUE(refuses(of_size("268435457"), {"at most 268435456 are allowed"}));
  EXPECT_TRUE(refuses(of_size("-1"), {"has no size"}));
  EXPECT_TRUE(refuses(of_size("1e3"), {"has no size"}));
}

TEST_F(CachePackTest, ManifestsInAnyOtherFormAreRefused) {
  const std::string a = std::string(64, 'a');
  const std::string b = std::string(64, 'b');
  const auto entry = [](const std::string& key, const std::string& more = "") {
    return fmt::format(R"({{"bytes":0,"key":"{}","sha256":"{}"{}}})", key, std::string(64, '0'),
                       more);
  };
  const auto manifest = [](const std::string& entries, const std::string& more = "") {
    return with_manifest(
        fmt::format(R"({{"entries":[{}],"format":"lazyrope pack 1"{}}})", entries, more));
  };
  EXPECT_TRUE(refuses(manifest(entry(b) + "," + entry(a)), {"not sorted"}));
  EXPECT_TRUE(refuses(manifest(entry(a) + "," + entry(a)), {"one is there twice"}));
  const std::vector<std::string> names = {"../" + std::string(61, 'a'), "/a/file", a + "/x",
                                          std::string(64, 'A'),         "",        a + ".lzr"};
  for (const std::string& name : names)
    EXPECT_TRUE(refuses(manifest(entry(name)), {"an entry's key is not 64 characters"})) << name;
  EXPECT_TRUE(refuses(manifest(entry(a, R"(,"path":"/etc")")), {"not in the form"}));
  EXPECT_TRUE(refuses(manifest("", R"(,"more":1)"), {"not in the form"}));
  EXPECT_TRUE(refuses(with_manifest(R"({"entries":[],"format":"lazyrope pack 2"})"), {"form"}));
  EXPECT_TRUE(refuses(with_manifest(R"({"entries": [],"format":"lazyrope pack 1"})"), {"form"}));
  EXPECT_TRUE(refuses(with_manifest(R"({"entries":{}})"), {"no list"}));
  EXPECT_TRUE(refuses(with_manifest("[]"), {"no JSON object"}));
  EXPECT_TRUE(refuses(with_manifest(""), {"no JSON object"}));
  EXPECT_TRUE(refuses(with_manifest(std::string(1 << 20, '[')), {"no JSON object"}));
  EXPECT_TRUE(refuses(manifest(entry(a)), {"entry " + a, "checksum"}));
}

TEST_F(CachePackTest, AnEntryOfAnotherKeyIsRefused) {
  const Bytes entry = encode_entry(key_of("sm_80"), entry_of("sm_80"));
  const std::string other = key_of("sm_89").hex();
  const std::string manifest = encode_manifest({{other, entry.size(), to_hex(sha256(entry))}});
  EXPECT_TRUE(refuses(with_manifest(manifest, entry), {other, "it belongs to the key"}));
}

TEST_F(CachePackTest, AGoodEntryThatIsNotTheManifestsIsRefused) {
  Bytes pack = pack_of({"sm_80"});
  Entry other = entry_of("sm_80");
  other.payload.back() ^= std::byte{1};
  const Bytes entry = encode_entry(key_of("sm_80"), other);
  std::ranges::copy(entry, pack.end() - std::ssize(entry));
  EXPECT_TRUE(refuses(pack, {key_of("sm_80").hex(), "not the checksum that the manifest names"}));
}

TEST_F(CachePackTest, OnlyRegularFilesAreOpened) {
  const fs::path fifo = directory_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const fs::path& path : {fifo, directory_.path()})
    EXPECT_TRUE(throws<CacheError>([&] { Pack::open(path); }, {"is not a regular file"}));
  EXPECT_TRUE(throws<CacheError>([&] { Pack::open(directory_ / "absent"); }, {"cannot open"}));
  write(pack_of({"sm_80"}));
  fs::create_symlink(file_, directory_ / "link");
  EXPECT_EQ(Pack::open(directory_ / "link").manifest().size(), 1u);
}

TEST_F(CachePackTest, AFileThatChangesWhileItIsOpenIsAMiss) {
  const Bytes good = pack_of({"sm_80"});
  const Pack pack = Pack::open(write(good));
  Bytes changed = good;
  changed.back() ^= std::byte{1};
  write(changed);
  const LoadResult loaded = pack.load(key_of("sm_80"));
  EXPECT_FALSE(loaded.entry.has_value());
  EXPECT_TRUE(loaded.refused);
  fs::resize_file(file_, 200);
  EXPECT_TRUE(says(pack.load(key_of("sm_80")).miss_reason, {"became shorter"}));
}

TEST_F(CachePackTest, AnUnsignedPackIsRefusedIfAKeyIsTrusted) {
  const PublicKey key{{1, 2, 3}};
  EXPECT_TRUE(refuses(pack_of({"sm_80"}), {"it is not signed", text_of(key)}, {key}));
}

TEST_F(CachePackTest, UnpackingAddsFindsAndReplaces) {
  const DiskStore store(directory_ / "store");
  Entry other = entry_of("sm_89");
  other.payload.front() = std::byte{99};
  ASSERT_TRUE(store.store(key_of("sm_80"), entry_of("sm_80", 17)).stored);
  ASSERT_TRUE(store.store(key_of("sm_89"), other).stored);
  const Pack pack = Pack::open(write(pack_of({"sm_80", "sm_89", "sm_120"})));
  const auto outcome_of = [&](const std::string& arch) {
    for (const PackedEntry& entry : entries_of(pack, &store))
      if (entry.key == key_of(arch).hex()) return std::string(to_string(entry.outcome));
    return std::string("absent");
  };
  EXPECT_EQ(outcome_of("sm_80"), "found");
  EXPECT_EQ(outcome_of("sm_89"), "replaced");
  EXPECT_EQ(outcome_of("sm_120"), "added");
  unpack(pack, entries_of(pack, &store), store);
  for (const char* arch : {"sm_80", "sm_89", "sm_120"}) EXPECT_EQ(outcome_of(arch), "found");
  // The entry that was there keeps the time that its compilation took.
  EXPECT_EQ(store.load(key_of("sm_80")).entry->facts, entry_of("sm_80", 17).facts);
}

#if LAZYROPE_SIGNATURES

TEST_F(CachePackTest, ASignedPackIsAcceptedByItsKeyAlone) {
  const SecretKey secret = make_secret_key();
  const PublicKey key = public_key_of(secret);
  const PublicKey other = public_key_of(make_secret_key());
  const Bytes pack = pack_of({"sm_80"}, secret);
  EXPECT_EQ(pack, pack_of({"sm_80"}, secret));
  EXPECT_EQ(Pack::open(write(pack)).signer(), key);
  EXPECT_EQ(Pack::open(write(pack), {other, key}).signer(), key);
  EXPECT_TRUE(refuses(pack, {"it is signed by " + text_of(key), text_of(other)}, {other}));
}

TEST_F(CachePackTest, ASignatureOfAnotherPackIsRefused) {
  const SecretKey secret = make_secret_key();
  Bytes pack = pack_of({"sm_80"}, secret);
  const Bytes other = pack_of({"sm_89"}, secret);
  std::copy_n(other.begin() + 12, 96, pack.begin() + 12);
  EXPECT_TRUE(refuses(pack, {"the signature does not fit"}));
  // A stranger's valid signature under the name of the trusted key is refused too.
  const SecretKey stranger = make_secret_key();
  Bytes forged = pack_of({"sm_80"}, stranger);
  const PublicKey trusted = public_key_of(secret);
  std::memcpy(forged.data() + 12, trusted.bytes.data(), trusted.bytes.size());
  EXPECT_TRUE(refuses(forged, {"the signature does not fit"}, {trusted}));
}

TEST_F(CachePackTest, SignaturesAreThoseOfRfc8032) {
  // The second test vector of RFC 8032, section 7.1.
  const fs::path secret = directory_ / "secret";
  std::ofstream(secret) << "lazyrope-secret-key:"
                           "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb\n";
  const SecretKey key = read_secret_key(secret);
  EXPECT_EQ(text_of(public_key_of(key)),
            "lazyrope-public-key:3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c");
  const Bytes message = {std::byte{0x72}};
  const Signature signature = sign(key, message);
  EXPECT_EQ(fmt::format("{:02x}{:02x}{:02x}", signature[0], signature[1], signature[63]), "92a000");
  EXPECT_TRUE(is_signed_by(public_key_of(key), message, signature));
  EXPECT_FALSE(is_signed_by(public_key_of(key), Bytes{std::byte{0x73}}, signature));
}

TEST_F(CachePackTest, AKeyPairIsWrittenOnceAndReadBack) {
  const fs::path secret = directory_ / "fleet.key";
  const PublicKey key = write_key_pair(secret);
  EXPECT_EQ(public_key_of(read_secret_key(secret)), key);
  EXPECT_EQ(trusted_keys(secret.string() + ".pub"), std::vector{key});
  EXPECT_EQ(trusted_keys(text_of(key)), std::vector{key});
  struct stat status = {};
  ASSERT_EQ(::stat(secret.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_TRUE(throws<CacheError>([&] { write_key_pair(secret); }, {"exists already"}));
  fs::remove(secret);
  EXPECT_TRUE(throws<CacheError>([&] { write_key_pair(secret); }, {".pub exists already"}));
  EXPECT_FALSE(fs::exists(secret));
}

#else

TEST_F(CachePackTest, ABuildWithoutLibsodiumSignsNothingAndAcceptsNoSignature) {
  const auto refused = {std::string("built without libsodium"), std::string("unsigned pack")};
  EXPECT_TRUE(throws<CacheError>([&] { write_key_pair(directory_ / "key"); }, refused));
  EXPECT_FALSE(fs::exists(directory_ / "key"));
  EXPECT_TRUE(throws<CacheError>([&] { pack_of({"sm_80"}, SecretKey{}); }, refused));
  Bytes pack = pack_of({"sm_80"});
  pack[12] = std::byte{1};
  EXPECT_TRUE(refuses(pack, refused));
}

#endif

TEST_F(CachePackTest, FilesThatAreNoKeysAreRefusedWithoutShowingThem) {
  const std::string hex(64, 'a');
  const auto file_of = [&](const std::string& text) {
    std::ofstream(directory_ / "key") << text;
    return (directory_ / "key").string();
  };
  const std::string line = "lazyrope-secret-key:" + hex;
  const std::vector<std::string> texts = {"", "lazyrope-public-key:" + hex,
                                          "lazyrope-secret-key:abc", hex, line + "\n" + line};
  for (const std::string& text : texts)
    EXPECT_TRUE(throws<CacheError>([&] { (void)read_secret_key(file_of(text)); },
                                   {"is no file of a secret key", "lazyrope keygen"}))
        << text;
  const auto of_secret = [&] { (void)trusted_keys(file_of("lazyrope-secret-key:" + hex)); };
  EXPECT_TRUE(throws<CacheError>(of_secret, {"is no file of a public key"}));
  EXPECT_FALSE(throws<CacheError>(of_secret, {hex}));
  EXPECT_TRUE(throws<CacheError>([&] { (void)trusted_keys(file_of("\n")); }, {"no file of"}));
  EXPECT_TRUE(throws<CacheError>([&] { (void)trusted_keys("lazyrope-public-key:abc"); },
                                 {"is no public key: 64 characters"}));
  EXPECT_TRUE(throws<CacheError>([&] { (void)trusted_keys("/absent"); }, {"cannot open /absent"}));
  EXPECT_TRUE(throws<CacheError>([&] { (void)trusted_keys(file_of(std::string(70000, 'x'))); },
                                 {"at most 65536 are allowed"}));
  EXPECT_TRUE(trusted_keys("").empty());
  const auto two = trusted_keys(file_of("lazyrope-public-key:" + hex +
                                        "\n\nlazyrope-public-key:" + std::string(64, 'b') + "\n"));
  EXPECT_EQ(two.size(), 2u);
}

}  // namespace
}  // namespace lazyrope
