#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cache/error.h"
#include "cache/key.h"

namespace lazyrope {
namespace {

Key key_of(const std::string& value) { return KeyBuilder().field("f", value).finish(); }

std::string error_of(const auto& action) {
  try {
    action();
  } catch (const CacheError& error) {
    return error.what();
  }
  return "no error";
}

// Keys are names of files that other versions of lazyrope wrote, so this key must never change.
TEST(CacheKey, IsTheDigestOfTheFields) {
  const Key key = KeyBuilder().field("arch", "sm_90a").field("source", "text").finish();
  EXPECT_EQ(key.hex(), "8097e06fa6d4ef8d93e0195eff67a19bb6684dd8882add51987165cef471860c");
  EXPECT_TRUE(is_key_hex(key.hex()));
}

TEST(CacheKey, DoesNotDependOnTheOrderOfTheFields) {
  const Key one = KeyBuilder().field("arch", "sm_90a").field("source", "text").finish();
  const Key other = KeyBuilder().field("source", "text").field("arch", "sm_90a").finish();
  EXPECT_EQ(one.hex(), other.hex());
  EXPECT_EQ(one.fields(), other.fields());
}

TEST(CacheKey, DependsOnWhereNamesAndValuesEnd) {
  const std::vector<Key> keys = {
      KeyBuilder().field("a", "bc").finish(),
      KeyBuilder().field("ab", "c").finish(),
      KeyBuilder().field("a", "b").field("c", "").finish(),
      KeyBuilder().field("a", "").field("c", "b").finish(),
      KeyBuilder().field("a", "b1:c0:").finish(),
      KeyBuilder().field("a", "").finish(),
      KeyBuilder().field("a", std::string(1, '\0')).finish(),
      KeyBuilder().field("a", std::string(2, '\0')).finish(),
  };
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(keys[i].hex(), keys[j].hex()) << i << " " << j;
  }
}

TEST(CacheKey, ShortTextIsKeptAndOtherValuesAreDigested) {
  const std::string short_text(128, 'x');
  EXPECT_EQ(key_of(short_text).fields().at("f"), short_text);
  EXPECT_EQ(key_of("").fields().at("f"), "");
  EXPECT_EQ(key_of("NVIDIA H200 (700 W)").fields().at("f"), "NVIDIA H200 (700 W)");

  // The digest is the output of "sha256sum".
  EXPECT_EQ(key_of(std::string(129, 'x')).fields().at("f"),
            "sha256:0ec9eb33e74510bcdd1f2ea55206e82f21649c5c2becbf2b433eb475b34c01bd");
  EXPECT_TRUE(key_of("two\nlines").fields().at("f").starts_with("sha256:"));
  EXPECT_TRUE(key_of("\xff").fields().at("f").starts_with("sha256:"));
}

// Otherwise the short value "sha256:..." would have the same key as the long one.
TEST(CacheKey, AValueIsNotTakenForTheDigestOfAnother) {
  const Key long_value = key_of(std::string(129, 'x'));
  const Key forged = key_of(long_value.fields().at("f"));
  EXPECT_NE(forged.hex(), long_value.hex());
  EXPECT_NE(forged.fields(), long_value.fields());
}

TEST(CacheKey, IsRebuiltFromItsFields) {
  const Key key =
      KeyBuilder().field("arch", "sm_90a").field("source", std::string(1000, 'x')).finish();
  EXPECT_EQ(Key::from_fields(key.fields()).hex(), key.hex());
}

TEST(CacheKey, RefusesAFieldGivenTwice) {
  KeyBuilder builder;
  builder.field("arch", "sm_80");
  EXPECT_EQ(error_of([&] { builder.field("arch", "sm_90a"); }),
            "cache key field 'arch' is given twice, as 'sm_80' and then as 'sm_90a'");
  EXPECT_EQ(builder.finish().fields().at("arch"), "sm_80");
}

TEST(CacheKey, RefusesNamesThatAreNotIdentifiers) {
  for (const std::string& name :
       {std::string(), std::string("Arch"), std::string("a b"), std::string("a:b"),
        std::string("\xc3\xa4"), std::string(65, 'a')}) {
    EXPECT_EQ(error_of([&] { KeyBuilder().field(name, "x"); }),
              "cache key field '" + name +
                  "': a name has 1 to 64 characters out of a-z, 0-9, '_' and '.'");
  }
  EXPECT_NO_THROW(KeyBuilder().field("nvrtc.build_id_2", "x"));
  EXPECT_NO_THROW(KeyBuilder().field(std::string(64, 'a'), "x"));
}

TEST(CacheKey, RefusesAKeyWithoutFields) {
  EXPECT_EQ(error_of([] { KeyBuilder().finish(); }), "a cache key needs at least one field");
}

TEST(CacheKey, RecognisesTheFormOfAKey) {
  EXPECT_TRUE(is_key_hex(std::string(64, 'a')));
  EXPECT_FALSE(is_key_hex(std::string(63, 'a')));
  EXPECT_FALSE(is_key_hex(std::string(65, 'a')));
  EXPECT_FALSE(is_key_hex(std::string(64, 'A')));
  EXPECT_FALSE(is_key_hex(std::string(64, 'g')));
  EXPECT_FALSE(is_key_hex("../" + std::string(61, 'a')));
}

}  // namespace
}  // namespace lazyrope
