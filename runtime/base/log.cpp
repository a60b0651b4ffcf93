#include "runtime/base/log.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>

namespace lazyrope {
namespace {

struct Logger {
  std::atomic<LogLevel> level = LogLevel::kWarning;
  std::mutex mutex;  // guards the pointers, not the calls: a sink may wait for Python's lock
  std::shared_ptr<const LogSink> sink;
  std::shared_ptr<const LogSink> default_sink;  // used while `sink` is null
};

// The logger is never destroyed, because other objects' destructors may log at exit.
Logger& logger() {
  static auto* const instance = new Logger;
  return *instance;
}

std::shared_ptr<const LogSink> current_sink() {
  Logger& log = logger();
  const std::lock_guard lock(log.mutex);
  return log.sink ? log.sink : log.default_sink;
}

void write_to_stderr(LogLevel level, std::string_view message) {
  const std::string line = fmt::format("lazyrope: {}: {}\n", to_string(level), message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

std::string_view to_string(LogLevel level) {
  constexpr std::array<std::string_view, 4> kNames = {"off", "warning", "info", "debug"};
  return kNames.at(static_cast<std::size_t>(level));
}

void set_log_level(LogLevel level) { logger().level = level; }

void set_log_sink(LogSink sink) {
  auto next = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  Logger& log = logger();
  const std::lock_guard lock(log.mutex);
  log.sink.swap(next);
}

void set_default_log_sink(LogSink sink) {
  auto next = std::make_shared<const LogSink>(std::move(sink));
  Logger& log = logger();
  const std::lock_guard lock(log.mutex);
  log.default_sink.swap(next);
  log.level = LogLevel::kDebug;
}

void log_to_stderr(LogLevel level) {
  Logger& log = logger();
  const std::lock_guard lock(log.mutex);
  log.default_sink.reset();
  log.level = level;
}

bool log_enabled(LogLevel level) { return level <= logger().level.load(std::memory_order_relaxed); }

void write_log(LogLevel level, std::string_view message) noexcept {
  try {
    if (const auto sink = current_sink()) {
      (*sink)(level, message);
    } else {
      write_to_stderr(level, message);
    }
  } catch (...) {  // NOLINT: see LogSink
  }
}

}  // namespace lazyrope
