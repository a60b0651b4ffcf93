#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <stop_token>

namespace lazyrope {

// Sets the function that long calls (compilations, tuning) call between their steps, on the thread
// that made the call. It throws to end the call, as Python's does after Ctrl-C. It is process-wide
// and not locked: set it before the first such call.
void set_interruption_check(std::function<void()> check);
// Calls the function that was set, if any, and lets its exception through.
void check_interruption();

// Thrown on a worker thread whose call has ended meanwhile, for example by check_interruption() on
// the caller's thread. The caller sees the reason for the end and not this.
class Stopped : public std::exception {
 public:
  const char* what() const noexcept override { return "the call of this job has ended"; }
};

// Throws Stopped if a stop is requested.
void throw_if_stopped(const std::stop_token& stop);

// A limit to the duration of a call, counted from the construction.
class TimeLimit {
 public:
  explicit TimeLimit(std::chrono::milliseconds length)
      : length_(length), end_(std::chrono::steady_clock::now() + length) {}

  std::chrono::milliseconds length() const { return length_; }
  bool is_over() const { return std::chrono::steady_clock::now() >= end_; }

 private:
  std::chrono::milliseconds length_;
  std::chrono::steady_clock::time_point end_;
};

}  // namespace lazyrope
