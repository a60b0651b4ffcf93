#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>

namespace lazyrope {

// A line on stderr, if that is a terminal, that says what is being done; gone when this goes. While
// it is there, log messages appear above it.
class Progress {
 public:
  explicit Progress(std::size_t total);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  // The next of the `total` things to do.
  void next(std::string_view what);
  // What of it is being done now.
  void say(std::string_view what);

 private:
  void show(std::string_view what);  // holding the mutex
  void write_above(std::string_view line);

  bool shown_;
  std::size_t total_;
  std::size_t count_ = 0;
  std::mutex mutex_;  // guards line_ and the terminal
  std::string line_;
};

}  // namespace lazyrope
