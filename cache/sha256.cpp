#include "cache/sha256.h"

#include <algorithm>
#include <bit>

#include "cache/sha256_x86.h"

namespace lazyrope {
namespace {

constexpr std::size_t kBlockBytes = 64;

constexpr Sha256State kInitialState = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

constexpr Sha256RoundConstants kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t load_big_endian(const std::byte* p) {
  return std::to_integer<std::uint32_t>(p[0]) << 24 | std::to_integer<std::uint32_t>(p[1]) << 16 |
         std::to_integer<std::uint32_t>(p[2]) << 8 | std::to_integer<std::uint32_t>(p[3]);
}

// Computes one round. The eight working variables keep their registers: the caller rotates the
// roles of the arguments, which saves the textbook form's seven moves per round.
inline void round(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t& d,
                  std::uint32_t e, std::uint32_t f, std::uint32_t g, std::uint32_t& h,
                  std::uint32_t constant_and_word) {
  const std::uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
  const std::uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
  const std::uint32_t choose = g ^ (e & (f ^ g));
  const std::uint32_t majority = (a & b) | (c & (a | b));
  const std::uint32_t t = h + sum1 + choose + constant_and_word;
  d += t;
  h = t + sum0 + majority;
}

std::array<std::uint32_t, 64> message_schedule(const std::byte* block) {
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i) w[i] = load_big_endian(block + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  return w;
}

void absorb_block(Sha256State& state, const std::byte* block, const Sha256RoundConstants& k) {
  const auto w = message_schedule(block);
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < 64; i += 8) {
    round(a, b, c, d, e, f, g, h, k[i + 0] + w[i + 0]);
    round(h, a, b, c, d, e, f, g, k[i + 1] + w[i + 1]);
    round(g, h, a, b, c, d, e, f, k[i + 2] + w[i + 2]);
    round(f, g, h, a, b, c, d, e, k[i + 3] + w[i + 3]);
    round(e, f, g, h, a, b, c, d, k[i + 4] + w[i + 4]);
    round(d, e, f, g, h, a, b, c, k[i + 5] + w[i + 5]);
    round(c, d, e, f, g, h, a, b, k[i + 6] + w[i + 6]);
    round(b, c, d, e, f, g, h, a, k[i + 7] + w[i + 7]);
  }
  const Sha256State sums = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += sums[i];
}

void absorb_blocks(Sha256State& state, const std::byte* blocks, std::size_t count,
                   const Sha256RoundConstants& constants) {
  for (std::size_t i = 0; i < count; ++i) absorb_block(state, blocks + i * kBlockBytes, constants);
}

struct Tail {
  std::array<std::byte, 2 * kBlockBytes> bytes{};
  std::size_t blocks;
};

// Returns the blocks after the last whole one: the rest of the message, a one bit, zeros, and the
// length of the message in bits, big-endian.
Tail padded_tail(std::span<const std::byte> rest, std::uint64_t message_bytes) {
  Tail tail{.blocks = rest.size() + 9 <= kBlockBytes ? 1u : 2u};
  std::ranges::copy(rest, tail.bytes.begin());
  tail.bytes[rest.size()] = std::byte{0x80};
  const std::size_t last = tail.blocks * kBlockBytes - 1;
  const std::uint64_t bits = message_bytes * 8;
  for (std::size_t i = 0; i < 8; ++i) tail.bytes[last - i] = std::byte(bits >> 8 * i & 0xff);
  return tail;
}

Sha256Digest digest_of(const Sha256State& state) {
  Sha256Digest digest;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)) & 0xff);
  }
  return digest;
}

Sha256Digest hash(std::span<const std::byte> data, Sha256AbsorbBlocks absorb) {
  Sha256State state = kInitialState;
  const std::size_t whole_blocks = data.size() / kBlockBytes;
  absorb(state, data.data(), whole_blocks, kRoundConstants);
  const Tail tail = padded_tail(data.subspan(whole_blocks * kBlockBytes), data.size());
  absorb(state, tail.bytes.data(), tail.blocks, kRoundConstants);
  return digest_of(state);
}

// Returns the CPU's SHA instructions, or null if it has none.
Sha256AbsorbBlocks instructions() {
  static const Sha256AbsorbBlocks found = sha256_x86_instructions();
  return found;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_instructions() { (void)instructions(); }

}  // namespace

Sha256Digest sha256(std::span<const std::byte> data) {
  return hash(data, instructions() != nullptr ? instructions() : absorb_blocks);
}

Sha256Digest sha256_portable(std::span<const std::byte> data) { return hash(data, absorb_blocks); }

std::string to_hex(const Sha256Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * digest.size());
  for (const std::uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace lazyrope
