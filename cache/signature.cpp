#include "cache/signature.h"

#include <sodium.h>

#include "cache/error.h"

namespace lazyrope {
namespace {

static_assert(crypto_sign_SEEDBYTES == sizeof(SecretKey::seed));
static_assert(crypto_sign_PUBLICKEYBYTES == sizeof(PublicKey::bytes));
static_assert(crypto_sign_BYTES == sizeof(Signature));

// libsodium signs with the seed and the public key side by side. The destructor erases the copy.
struct ExpandedKey {
  explicit ExpandedKey(const SecretKey& key) {
    if (crypto_sign_seed_keypair(public_key.bytes.data(), bytes.data(), key.seed.data()) != 0)
      throw CacheError("libsodium cannot derive the public key");
  }
  ~ExpandedKey() { sodium_memzero(bytes.data(), bytes.size()); }
  ExpandedKey(const ExpandedKey&) = delete;
  ExpandedKey& operator=(const ExpandedKey&) = delete;

  PublicKey public_key;
  std::array<std::uint8_t, crypto_sign_SECRETKEYBYTES> bytes = {};
};

// Returns the bytes as libsodium takes them.
const std::uint8_t* data_of(ByteSpan bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

void initialize() {
  // The function may be called again and from several threads.
  if (sodium_init() < 0) throw CacheError("libsodium cannot be initialized");
}

}  // namespace

SecretKey make_secret_key() {
  initialize();
  SecretKey key;
  randombytes_buf(key.seed.data(), key.seed.size());
  return key;
}

PublicKey public_key_of(const SecretKey& key) {
  initialize();
  return ExpandedKey(key).public_key;
}

Signature sign(const SecretKey& key, ByteSpan message) {
  initialize();
  const ExpandedKey expanded(key);
  Signature signature = {};
  if (crypto_sign_detached(signature.data(), nullptr, data_of(message), message.size(),
                           expanded.bytes.data()) != 0)
    throw CacheError("libsodium cannot sign");
  return signature;
}

bool is_signed_by(const PublicKey& key, ByteSpan message, const Signature& signature) {
  initialize();
  return crypto_sign_verify_detached(signature.data(), data_of(message), message.size(),
                                     key.bytes.data()) == 0;
}

}  // namespace lazyrope
