#include "runtime/base/log.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/base/fork.h"

namespace lazyrope {
namespace {

using SinkPtr = std::shared_ptr<const LogSink>;

struct Sinks {
  SinkPtr chosen;
  SinkPtr by_default;  // used while `chosen` is null
};

constinit std::atomic<LogLevel> log_level = LogLevel::kWarning;

// Guards the pointers, not the calls of sinks: a sink may wait for Python's lock.
constinit std::mutex sinks_mutex;
// It is never destroyed, because other objects' destructors may log at exit.
Sinks& sinks() {
  static Sinks& all = *new Sinks;
  return all;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_sinks() { (void)sinks(); }
[[gnu::constructor]] void hold_sinks() { hold_across_forks<sinks_mutex>(); }

SinkPtr current_sink() {
  const std::lock_guard lock(sinks_mutex);
  return sinks().chosen ? sinks().chosen : sinks().by_default;
}

// Returns the sink that `place` held. The caller lets it go without the lock: its destructor is not
// ours.
SinkPtr exchange_sink(SinkPtr& place, SinkPtr next) {
  const std::lock_guard lock(sinks_mutex);
  return std::exchange(place, std::move(next));
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

void set_log_level(LogLevel level) { log_level = level; }

void set_log_sink(LogSink sink) {
  exchange_sink(sinks().chosen, sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr);
}

void set_default_log_sink(LogSink sink) {
  exchange_sink(sinks().by_default, std::make_shared<const LogSink>(std::move(sink)));
  log_level = LogLevel::kDebug;
}

void log_to_stderr(LogLevel level) {
  exchange_sink(sinks().by_default, nullptr);
  log_level = level;
}

bool log_enabled(LogLevel level) { return level <= log_level.load(std::memory_order_relaxed); }

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
