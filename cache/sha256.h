#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace lazyrope {

using Sha256Digest = std::array<std::uint8_t, 32>;

// Returns the SHA-256 (FIPS 180-4) of `data`. Uses the CPU's SHA instructions if it has them.
Sha256Digest sha256(std::span<const std::byte> data);

// Returns the same without the SHA instructions, which are five times as fast.
Sha256Digest sha256_portable(std::span<const std::byte> data);

// Returns 64 lower-case hex characters.
std::string to_hex(const Sha256Digest& digest);

}  // namespace lazyrope
