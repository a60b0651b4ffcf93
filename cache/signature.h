#pragma once

#include <array>
#include <cstdint>

#include "cache/byte_io.h"

// Ed25519 signatures, of libsodium. In a build without libsodium every function throws CacheError.
namespace lazyrope {

struct PublicKey {
  std::array<std::uint8_t, 32> bytes = {};

  bool operator==(const PublicKey&) const = default;
};

struct SecretKey {
  std::array<std::uint8_t, 32> seed = {};
};

using Signature = std::array<std::uint8_t, 64>;

// Returns a new random key.
SecretKey make_secret_key();

// Returns the key that verifies the signatures of `key`.
PublicKey public_key_of(const SecretKey& key);

Signature sign(const SecretKey& key, ByteSpan message);

// Returns true if the owner of `key` signed the message.
bool is_signed_by(const PublicKey& key, ByteSpan message, const Signature& signature);

}  // namespace lazyrope
