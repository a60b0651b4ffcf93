#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "cache/sha256.h"

namespace lazyrope {
namespace {

using Hash = Sha256Digest (*)(std::span<const std::byte>);

// The tests run for two implementations: the portable one, and the one that sha256() chooses for
// this CPU.
class Sha256 : public ::testing::TestWithParam<Hash> {
 protected:
  static std::string hex(std::string_view text) {
    return to_hex(GetParam()(std::as_bytes(std::span(text))));
  }
};

// The messages are the examples of FIPS 180-2 for SHA-256 and SHA-512, and the empty message.
TEST_P(Sha256, AgreesWithTheStandard) {
  EXPECT_EQ(hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// These lengths cover every end of a message within a block. The expected value is from Python's
// hashlib: the digest of the joined digests of the first n bytes, n = 0 .. 300.
TEST_P(Sha256, PadsMessagesOfEveryLength) {
  std::vector<std::byte> message;
  std::vector<std::byte> digests;
  for (unsigned n = 0; n <= 300; ++n) {
    for (const std::uint8_t byte : GetParam()(message)) digests.push_back(std::byte(byte));
    message.push_back(std::byte((n * 7 + 3) & 0xff));
  }
  EXPECT_EQ(to_hex(GetParam()(digests)),
            "7d917fbd2cf49ddff9ad0a8706bba32d204e92e71d2e369c5a03d6af29278c9f");
}

INSTANTIATE_TEST_SUITE_P(Cache, Sha256, ::testing::Values(sha256, sha256_portable));

}  // namespace
}  // namespace lazyrope
