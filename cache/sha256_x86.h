#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lazyrope {

using Sha256State = std::array<std::uint32_t, 8>;
using Sha256RoundConstants = std::array<std::uint32_t, 64>;

// Absorbs `count` blocks of 64 bytes into the state.
using Sha256AbsorbBlocks = void (*)(Sha256State& state, const std::byte* blocks, std::size_t count,
                                    const Sha256RoundConstants& constants);

// Returns the block function that uses the SHA instructions of x86, or nullptr on a CPU without
// them.
Sha256AbsorbBlocks sha256_x86_instructions();

}  // namespace lazyrope
