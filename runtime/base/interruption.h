#pragma once

#include <functional>

namespace lazyrope {

// Sets the function that long calls (compilations, tuning) call between their steps, on the thread
// that made the call. It throws to end the call, as Python's does after Ctrl-C. It is process-wide
// and not locked: set it before the first such call.
void set_interruption_check(std::function<void()> check);
// Calls the function that was set, if any, and lets its exception through.
void check_interruption();

}  // namespace lazyrope
