#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cache/signature.h"

// A key as text is a prefix that names its kind, and 64 hex characters. A file of a secret key has
// one such line; a file of public keys has one or more. All functions throw CacheError.
namespace lazyrope {

// Returns "lazyrope-public-key:" and the key in hex.
std::string text_of(const PublicKey& key);

// Makes a key pair: the file `path` with the secret key, which only its owner can read, and the
// file `<path>.pub` with the public key. Neither file may exist yet.
PublicKey write_key_pair(const std::filesystem::path& path);

SecretKey read_secret_key(const std::filesystem::path& path);

// Returns the keys of a setting: a public key as text, or the path of a file of public keys. An
// empty setting has no keys.
std::vector<PublicKey> trusted_keys(const std::string& setting);

}  // namespace lazyrope
