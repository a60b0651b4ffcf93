// This file replaces signature.cpp in a build without libsodium.
#include "cache/error.h"
#include "cache/signature.h"

namespace lazyrope {
namespace {

[[noreturn]] void refuse() {
  throw CacheError(
      "this lazyrope was built without libsodium (-DLAZYROPE_SIGNATURES=OFF), so it can neither "
      "sign packs nor check signatures: use a build with libsodium, or an unsigned pack");
}

}  // namespace

SecretKey make_secret_key() { refuse(); }

PublicKey public_key_of(const SecretKey&) { refuse(); }

Signature sign(const SecretKey&, ByteSpan) { refuse(); }

bool is_signed_by(const PublicKey&, ByteSpan, const Signature&) { refuse(); }

}  // namespace lazyrope
