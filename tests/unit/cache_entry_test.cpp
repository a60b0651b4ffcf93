#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "cache/entry.h"
#include "cache/error.h"
#include "cache/sha256.h"

namespace lazyrope {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kHeaderBytes = 68;

Key example_key() { return KeyBuilder().field("arch", "sm_90a").field("source", "text").finish(); }

Entry example_entry() {
  Entry entry;
  entry.facts = R"({"entry_name":"attention","shared_bytes":98304,"spills":false})";
  for (unsigned i = 0; i < 200; ++i) entry.payload.push_back(std::byte(i * 37 & 0xff));
  return entry;
}

Bytes example_file() { return encode_entry(example_key(), example_entry()); }

void seal(Bytes& file) {
  const auto digest = sha256(std::span<const std::byte>(file).subspan(44));
  std::ranges::transform(digest, file.begin() + 12, [](std::uint8_t b) { return std::byte(b); });
}

// Returns the reason why `file` is refused.
std::string refusal(const Bytes& file, const std::string& key_hex = example_key().hex()) {
  try {
    decode_entry(file, key_hex);
  } catch (const CacheError& error) {
    return error.what();
  }
  return "accepted";
}

bool starts_with(const std::string& text, const std::string& start) {
  return text.starts_with(start);
}

TEST(CacheEntry, DecodesToTheEncodedEntry) {
  const auto [key, entry] = decode_entry(example_file(), example_key().hex());
  EXPECT_EQ(key.fields(), example_key().fields());
  EXPECT_EQ(entry.facts, example_entry().facts);
  EXPECT_EQ(entry.payload, example_entry().payload);
}

TEST(CacheEntry, MayBeEmpty) {
  const Bytes file = encode_entry(example_key(), Entry{});
  const auto entry = decode_entry(file, example_key().hex()).entry;
  EXPECT_TRUE(entry.facts.empty());
  EXPECT_TRUE(entry.payload.empty());
}

// Files of earlier builds must stay readable, or the format version must rise.
TEST(CacheEntry, HasTheDocumentedLayout) {
  const std::string fields = R"({"arch":"sm_90a","source":"text"})";
  const std::string facts = R"({"n":1})";
  std::string expected("LAZYROPE\x01\0\0\0", 12);
  expected += std::string(32, '\0');
  expected += static_cast<char>(fields.size()) + std::string(7, '\0');
  expected += static_cast<char>(facts.size()) + std::string(7, '\0');
  expected += '\3' + std::string(7, '\0') + fields + facts + "abc";
  Bytes file(expected.size());
  std::ranges::transform(expected, file.begin(), [](char c) { return std::byte(c); });
  seal(file);

  const Entry entry{facts, {std::byte{'a'}, std::byte{'b'}, std::byte{'c'}}};
  EXPECT_EQ(encode_entry(example_key(), entry), file);
}

TEST(CacheEntry, RefusesEveryTruncation) {
  const Bytes file = example_file();
  for (std::size_t size = 0; size < file.size(); ++size) {
    const Bytes part(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_PRED2(starts_with, refusal(part), "truncated: ") << size;
  }
  EXPECT_EQ(refusal(Bytes(file.begin(), file.begin() + 100)),
            "truncated: 100 bytes of " + std::to_string(file.size()));
  EXPECT_EQ(refusal({}), "truncated: 0 bytes; the header alone has 68");
}

TEST(CacheEntry, RefusesEveryChangedByte) {
  const Bytes file = example_file();
  for (std::size_t at = 0; at < file.size(); ++at) {
    for (const unsigned flip : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u, 255u}) {
      Bytes changed = file;
      changed[at] ^= std::byte(flip);
      EXPECT_NE(refusal(changed), "accepted") << "byte " << at << " ^ " << flip;
    }
  }
}

// The checksum is valid, so only the later checks can refuse the random changes.
TEST(CacheEntry, RefusesNonsenseWithAValidChecksum) {
  const Bytes file = example_file();
  std::minstd_rand random(1);
  for (int i = 0; i < 5000; ++i) {
    Bytes changed = file;
    for (unsigned flips = 1 + random() % 4; flips > 0; --flips) {
      const std::size_t at = 44 + random() % (file.size() - 44);
      changed[at] = std::byte(random() & 0xff);
    }
    if (random() % 4 == 0) changed.resize(kHeaderBytes + random() % file.size());
    seal(changed);
    try {
      const auto decoded = decode_entry(changed, example_key().hex());
      EXPECT_EQ(decoded.key.fields(), example_key().fields());
    } catch (const CacheError&) {
    }
    try {
      EXPECT_EQ(decode_key(changed, example_key().hex()).fields(), example_key().fields());
    } catch (const CacheError&) {
    }
  }
}

TEST(CacheEntry, RefusesRandomBytes) {
  std::minstd_rand random(2);
  for (int i = 0; i < 2000; ++i) {
    Bytes bytes(random() % 300);
    std::ranges::generate(bytes, [&] { return std::byte(random() & 0xff); });
    EXPECT_NE(refusal(bytes), "accepted");
  }
}

TEST(CacheEntry, ErrorsNameTheProblem) {
  Bytes file = example_file();
  file.back() ^= std::byte{1};
  EXPECT_EQ(refusal(file), "checksum mismatch");

  file = example_file();
  file.resize(file.size() + 7);
  EXPECT_EQ(refusal(file), "7 bytes after the end of the entry");

  file = example_file();
  file[0] = std::byte{'l'};
  EXPECT_EQ(refusal(file), "not a cache entry of lazyrope");

  file = example_file();
  file[8] = std::byte{2};
  EXPECT_EQ(refusal(file), "format 2; this version of lazyrope reads format 1");

  file = example_file();
  std::fill(file.begin() + 44, file.begin() + 52, std::byte{0xff});
  EXPECT_PRED2(starts_with, refusal(file), "bad header: a length of 18446744073709551615 bytes");

  EXPECT_EQ(refusal(example_file(), std::string(64, '0')),
            "it belongs to the key " + example_key().hex());
}

TEST(CacheEntry, ErrorsNameTheBadJson) {
  Bytes file = example_file();
  file[kHeaderBytes] = std::byte{'x'};
  seal(file);
  EXPECT_EQ(refusal(file), "the key fields are not JSON");

  file = example_file();
  const std::string fields = nlohmann::json(example_key().fields()).dump();
  file[kHeaderBytes + fields.size()] = std::byte{'x'};
  seal(file);
  EXPECT_EQ(refusal(file), "the facts are not JSON");

  file = example_file();
  std::ranges::fill(std::span(file).subspan(kHeaderBytes, fields.size()), std::byte{'1'});
  seal(file);
  EXPECT_EQ(refusal(file), "the key fields are not a JSON object of strings");
}

TEST(CacheEntry, SurvivesDeeplyNestedFacts) {
  const std::string depth = '"' + std::string(100'000, '[') + '"';
  Bytes file = encode_entry(example_key(), Entry{depth, {}});
  const std::size_t facts_at = file.size() - depth.size();
  file[facts_at] = file.back() = std::byte{'['};
  seal(file);
  EXPECT_EQ(refusal(file), "the facts are not JSON");
}

TEST(CacheEntry, RefusesToEncodeWhatItCouldNotDecode) {
  const auto refusal_to_write = [](const Entry& entry) -> std::string {
    try {
      encode_entry(example_key(), entry);
    } catch (const CacheError& error) {
      return error.what();
    }
    return "written";
  };
  EXPECT_PRED2(starts_with, refusal_to_write(Entry{"\"\xff\"", {}}), "the facts are not JSON");
  EXPECT_PRED2(starts_with, refusal_to_write(Entry{{}, Bytes(kMaxEntryBytes)}),
               "the entry has 2684");
}

TEST(CacheEntry, TheKeyIsDecodedFromTheFirstBytes) {
  Bytes file = example_file();
  const std::string fields = nlohmann::json(example_key().fields()).dump();
  file.resize(kHeaderBytes + fields.size());
  EXPECT_EQ(decode_key(file, example_key().hex()).fields(), example_key().fields());
  EXPECT_THROW(decode_key(file, std::string(64, '0')), CacheError);
  file.pop_back();
  EXPECT_THROW(decode_key(file, example_key().hex()), CacheError);
}

}  // namespace
}  // namespace lazyrope
