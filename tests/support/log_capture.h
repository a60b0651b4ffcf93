#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/log.h"

namespace lazyrope {

// Captures log messages during its lifetime, instead of printing them to stderr.
class LogCapture {
 public:
  LogCapture() {
    set_log_sink([this](LogLevel level, std::string_view message) {
      const std::lock_guard lock(mutex_);
      messages_.push_back(std::string(to_string(level)) + ": " + std::string(message));
    });
  }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  ~LogCapture() {
    set_log_sink({});
    set_log_level(LogLevel::kWarning);
  }

  // Returns the messages, each as "warning: text".
  std::vector<std::string> messages() const {
    const std::lock_guard lock(mutex_);
    return messages_;
  }

  // Returns all messages as one text with a line for each.
  std::string text() const {
    std::string text;
    for (const std::string& message : messages()) text += message + "\n";
    return text;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> messages_;
};

}  // namespace lazyrope
