#pragma once

#include <optional>
#include <string>

namespace lazyrope {

// Runs a command line by /bin/sh and waits for it: its exit status, 128 + the signal that ended it,
// or nothing where this process lets the system reap its children (it ignores SIGCHLD). Unlike
// std::system() it leaves the signals of this process as they are, so that Ctrl-C ends both, and
// the command's own children can be waited for whatever this process ignores.
std::optional<int> run_in_shell(const std::string& line);

}  // namespace lazyrope
