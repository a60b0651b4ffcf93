// The kernel attends to attention states (abi/states.h).
#pragma once

#include "abi/states.h"

namespace lazyrope {

inline constexpr int kMemories = kMaxMemories;

}  // namespace lazyrope
