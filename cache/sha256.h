#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace lazyrope {

using Sha256Digest = std::array<std::uint8_t, 32>;

// SHA-256 (FIPS 180-4) of `data`.
Sha256Digest sha256(std::span<const std::byte> data);

// The same, without the CPU's SHA instructions, which are five times as fast where there are any.
Sha256Digest sha256_portable(std::span<const std::byte> data);

// 64 lower-case hex characters.
std::string to_hex(const Sha256Digest& digest);

}  // namespace lazyrope
