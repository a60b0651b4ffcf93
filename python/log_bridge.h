#pragma once

#include <atomic>

namespace lazyrope {

// Sends the library's log messages to a queue until deliver_log() hands them to Python's logger
// "lazyrope". The queue needs neither the interpreter nor its lock. If LAZYROPE_LOG is set,
// messages go to stderr instead.
void bridge_log();

// Returns true if the queue has messages.
bool log_is_waiting();

// Hands the queued messages to the logger. The caller must hold the interpreter's lock and none of
// the library's, for a handler of the logger may call the library.
void deliver_log() noexcept;

// A call guard of bound functions: it delivers their log messages when they return to Python.
struct LogDelivery {
  LogDelivery() = default;
  LogDelivery(const LogDelivery&) = delete;
  LogDelivery& operator=(const LogDelivery&) = delete;
  ~LogDelivery() {
    if (log_is_waiting()) deliver_log();
  }
};

}  // namespace lazyrope
