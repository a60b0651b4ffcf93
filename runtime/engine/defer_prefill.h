#pragma once

#include <functional>

namespace lazyrope {

// Receives a function that compiles the kernel of prefill, to run it on another thread.
using DeferPrefill = std::function<void(std::function<void()> compile_prefill)>;

}  // namespace lazyrope
