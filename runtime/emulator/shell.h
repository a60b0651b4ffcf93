#pragma once

#include <optional>
#include <stop_token>
#include <string>

namespace lazyrope {

// Runs a command line in /bin/sh and waits for it. Returns its exit status, or 128 plus the number
// of the signal that ended it. Returns nothing if this process ignores SIGCHLD, because the system
// then reaps its children. Throws std::system_error if no shell can be started. If a stop is
// requested, the command is terminated.
//
// Unlike std::system(), it does not change the signal handling of this process, so Ctrl-C ends
// this process and the command. The command starts with the default SIGCHLD, so that it can wait
// for its own children.
std::optional<int> run_in_shell(const std::string& line, const std::stop_token& stop = {});

}  // namespace lazyrope
