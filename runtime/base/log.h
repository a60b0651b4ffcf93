#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

namespace lazyrope {

// How much is logged: each level includes those before it.
enum class LogLevel { kOff, kWarning, kInfo, kDebug };

// "off", "warning", "info" or "debug".
std::string_view to_string(LogLevel level);

// Receives one message without a line end, on the thread that logs it. It may be called from
// several threads at once. Its exceptions are dropped, because logging must not make the logged
// operation fail.
using LogSink = std::function<void(LogLevel level, std::string_view message)>;

// Sets the level for the process. The default is kWarning.
void set_log_level(LogLevel level);

// Sets the sink for the process. An empty `sink` restores the default, a line on stderr.
void set_log_sink(LogSink sink);

// Sets the sink of the process for messages of every level, which is used while no other sink is
// set and LAZYROPE_LOG is not. A program with a log of its own, such as Python's, decides there
// which messages to keep.
void set_host_log(LogSink sink);

// Sets the level that LAZYROPE_LOG asks for. Messages up to `level` go to stderr and not to the
// host's log.
void log_as_asked(LogLevel level);

// Returns true if a message of `level` would reach the sink.
bool log_enabled(LogLevel level);

// Hands `message` to the sink without checking the level.
void write_log(LogLevel level, std::string_view message) noexcept;

// Formats and logs a message. Does nothing when `level` is not enabled.
template <class... Args>
void log_message(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) write_log(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace lazyrope
