// This test damages cache files in many ways. Each damaged file is refused with a reason, or has
// the content that was stored. LAZYROPE_SOAK=1 runs a hundred times as many cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cache/disk_store.h"
#include "cache/error.h"
#include "cache/sha256.h"
#include "runtime/base/config.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/kernel_entry.h"
#include "tests/support/temporary_directory.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;
using Random = std::minstd_rand;

constexpr std::size_t kLengthsAt = 44;
constexpr std::size_t kHeaderBytes = 68;

Key key_of(int number) {
  return KeyBuilder().field("arch", "sm_90a").field("source", std::to_string(number)).finish();
}

Binary binary_of_number(int number) {
  Bytes code(static_cast<std::size_t>(500 + 37 * number));
  for (std::size_t i = 0; i < code.size(); ++i)
    code[i] = std::byte((i * 31 + static_cast<std::size_t>(number)) & 0xff);
  return {"tiny", "sm_90a", 128, 1024 * number, 40, 0, "nvrtc 13.0", 25.5, code};
}

Bytes file_of(int number) {
  return encode_entry(key_of(number), entry_of(binary_of_number(number)));
}

bool is_same(const Binary& a, const Binary& b) {
  return entry_of(a).facts == entry_of(b).facts && a.code == b.code;
}

void seal(Bytes& file) {
  const auto digest = sha256(std::span<const std::byte>(file).subspan(kLengthsAt));
  std::ranges::transform(digest, file.begin() + 12, [](std::uint8_t b) { return std::byte(b); });
}

std::size_t below(std::size_t limit, Random& random) { return random() % limit; }

void flip_bits(Bytes& file, Random& random) {
  for (std::size_t flips = 1 + below(4, random); flips > 0; --flips)
    file[below(file.size(), random)] ^= std::byte(1u << below(8, random));
}

void truncate(Bytes& file, Random& random) { file.resize(below(file.size(), random)); }

void append(Bytes& file, Random& random) {
  file.insert(file.end(), 1 + below(5000, random), std::byte(random() & 0xff));
}

// A crash of the machine may leave a sector of zeros.
void zero_a_sector(Bytes& file, Random& random) {
  const std::size_t begin = below(file.size(), random);
  std::ranges::fill(std::span(file).subspan(begin, std::min<std::size_t>(512, file.size() - begin)),
                    std::byte{0});
}

void repeat_a_block(Bytes& file, Random& random) {
  const std::size_t from = below(file.size() - 64, random);
  const Bytes block(file.begin() + static_cast<std::ptrdiff_t>(from),
                    file.begin() + static_cast<std::ptrdiff_t>(from + 64));
  file.insert(file.begin() + static_cast<std::ptrdiff_t>(below(file.size(), random)), block.begin(),
              block.end());
}

void take_another_file(Bytes& file, Random& random) {
  file = file_of(static_cast<int>(100 + below(50, random)));
}

void splice_two_files(Bytes& file, Random& random) {
  Bytes other;
  take_another_file(other, random);
  const std::size_t at = below(std::min(file.size(), other.size()), random);
  file.resize(at);
  const auto rest = std::span(other).subspan(at);
  file.insert(file.end(), rest.begin(), rest.end());
}

void randomize(Bytes& file, Random& random) {
  file.resize(below(3000, random));
  std::ranges::generate(file, [&] { return std::byte(random() & 0xff); });
}

void change_the_format(Bytes& file, Random& random) { file[8] = std::byte(2 + below(200, random)); }

void change_a_length(Bytes& file, Random& random) {
  const std::size_t at = kLengthsAt + 8 * below(3, random);
  const std::size_t bytes = 1 + below(8, random);
  for (std::size_t i = 0; i < bytes; ++i)
    file[at + i] = below(2, random) == 0 ? std::byte{0xff} : std::byte(random() & 0xff);
}

void change_a_length_and_seal(Bytes& file, Random& random) {
  change_a_length(file, random);
  seal(file);
}

// The key is the digest of these fields, so the changed entry belongs to another key.
void change_a_key_field_and_seal(Bytes& file, Random& random) {
  const std::string name = "sm_90a";
  const auto bytes = std::as_bytes(std::span(name));
  const auto at = std::ranges::search(file, bytes).begin();
  *(at + static_cast<std::ptrdiff_t>(below(name.size(), random))) = std::byte{'x'};
  seal(file);
}

// Only the reader of the facts can refuse a fact of a wrong type under a valid checksum.
void change_a_fact_and_seal(Bytes& file, Random& random) {
  const DecodedEntry decoded = decode_entry(file, key_of(7).hex());
  nlohmann::json facts = nlohmann::json::parse(decoded.entry.facts);
  const std::vector<std::string> names = {"threads", "shared_bytes", "registers", "spill_bytes"};
  const std::vector<nlohmann::json> values = {
      nullptr, true, -1, 1.5, 1e300, "32", nlohmann::json::array(), {{"a", 1}}, UINT64_MAX};
  const std::string name = names[below(names.size(), random)];
  if (below(4, random) == 0)
    facts.erase(name);
  else
    facts[name] = values[below(values.size(), random)];
  file = encode_entry(decoded.key, {facts.dump(), decoded.entry.payload});
}

struct Damage {
  const char* name;
  void (*apply)(Bytes& file, Random& random);
};

constexpr Damage kDamages[] = {{"flipped bits", flip_bits},
                               {"truncated", truncate},
                               {"appended bytes", append},
                               {"a sector of zeros", zero_a_sector},
                               {"a block twice", repeat_a_block},
                               {"another entry's file", take_another_file},
                               {"two files spliced", splice_two_files},
                               {"random bytes", randomize},
                               {"another format", change_the_format},
                               {"a wrong length", change_a_length},
                               {"a wrong length, sealed", change_a_length_and_seal},
                               {"a wrong key field, sealed", change_a_key_field_and_seal},
                               {"a wrong fact, sealed", change_a_fact_and_seal}};

class CacheDamageTest : public ::testing::Test {
 protected:
  void write(const Bytes& bytes) const {
    fs::remove(path_);  // some file systems write a truncated file to the disk at once
    std::ofstream out(path_, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(out.flush());
  }

  // Reads the file as the engine does. Returns the reason of a refusal, or "equal" if the file has
  // the stored content, or "used" if it was accepted with any other content.
  std::string outcome() const {
    LoadResult loaded = store_.load(key_);
    if (!loaded.entry) return loaded.refused ? loaded.miss_reason : "not refused";
    try {
      return is_same(lazyrope::binary_of(std::move(*loaded.entry)), binary_) ? "equal" : "used";
    } catch (const CacheError& error) {
      return error.what();
    }
  }

  const TemporaryDirectory directory_;
  const DiskStore store_{directory_.path()};
  const Key key_ = key_of(7);
  const Binary binary_ = binary_of_number(7);
  const fs::path path_ = directory_ / (key_.hex() + ".lzr");
};

TEST_F(CacheDamageTest, NoDamagedFileIsUsed) {
  const Bytes good = file_of(7);
  write(good);
  ASSERT_EQ(outcome(), "equal") << "the file is good before it is damaged";
  const int rounds = process_environment("LAZYROPE_SOAK") ? 16000 : 160;
  Random random(20);
  for (int round = 0; round < rounds; ++round) {
    for (const Damage& damage : kDamages) {
      Bytes file = good;
      damage.apply(file, random);
      write(file);
      const std::string result = outcome();
      EXPECT_TRUE(result != "used" && result != "not refused" && result != "")
          << damage.name << ": " << result;
      EXPECT_EQ(result == "equal", file == good) << damage.name << " in round " << round;
      EXPECT_LE(store_.list().size(), 1u);
    }
  }
}

TEST_F(CacheDamageTest, FilesWithTheNamesOfOthersAreRefused) {
  for (int number = 0; number < 20; ++number)
    ASSERT_TRUE(store_.store(key_of(number), entry_of(binary_of_number(number))).stored);
  const auto path = [&](int number) { return directory_ / (key_of(number).hex() + ".lzr"); };
  for (int number = 0; number < 20; number += 2) {
    fs::rename(path(number), directory_ / "aside");
    fs::rename(path(number + 1), path(number));
    fs::rename(directory_ / "aside", path(number + 1));
  }
  for (int number = 0; number < 20; ++number)
    EXPECT_NE(store_.load(key_of(number)).miss_reason.find("it belongs to the key"),
              std::string::npos);
  for (const ListedEntry& entry : store_.list()) EXPECT_NE(entry.error, "");
}

TEST_F(CacheDamageTest, FilesWithOtherNamesAreNoEntries) {
  const Bytes good = file_of(7);
  write(good);
  std::string upper = key_.hex();
  for (char& c : upper)
    if (c >= 'a') c = static_cast<char>(c - 'a' + 'A');
  const std::string hex = key_.hex();
  for (const std::string& name :
       {upper + ".lzr", hex.substr(1) + ".lzr", hex + "0.lzr", hex + ".LZR", hex + ".lzr ",
        hex + "..lzr", std::string(".lzr")}) {
    fs::rename(path_, directory_ / name);
    write(good);
  }
  fs::remove(path_);
  EXPECT_TRUE(store_.list().empty());
  EXPECT_EQ(store_.load(key_).miss_reason, "absent");
  EXPECT_EQ(store_.clear().entries(), 0u);
}

}  // namespace
}  // namespace lazyrope
