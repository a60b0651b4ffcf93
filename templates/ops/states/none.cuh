// The kernel has no attention states.
#pragma once

namespace lazyrope {

inline constexpr int kMemories = 0;

}  // namespace lazyrope
