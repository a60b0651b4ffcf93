#pragma once

#include <atomic>

namespace lazyrope {

// From now on the library's log messages wait in a queue, which needs neither the interpreter nor
// its lock, until deliver_log() hands them to Python's logger "lazyrope". Where LAZYROPE_LOG is set
// they go to stderr instead.
void bridge_log();

// Whether messages wait.
bool log_is_waiting();

// Hands the waiting messages to the logger. The caller holds the interpreter's lock and none of the
// library's, since handlers of the logger may do anything.
void deliver_log() noexcept;

// A guard of bound functions: what they logged is delivered as they return to Python.
struct DeliversLog {
  DeliversLog() = default;
  DeliversLog(const DeliversLog&) = delete;
  DeliversLog& operator=(const DeliversLog&) = delete;
  ~DeliversLog() {
    if (log_is_waiting()) deliver_log();
  }
};

}  // namespace lazyrope
