#pragma once

#include <functional>

namespace lazyrope {

// What calls that take seconds (compilations, tuning) ask between their parts, on the thread that
// made them: it throws to end the call, as Python does after Ctrl-C. Set before the first of these.
void set_interruption_check(std::function<void()> check);
void check_interruption();

}  // namespace lazyrope
