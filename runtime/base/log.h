#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

namespace lazyrope {

// The messages that are logged. Each level includes the levels before it.
enum class LogLevel { kOff, kWarning, kInfo, kDebug };

// "off", "warning", "info" or "debug".
std::string_view to_string(LogLevel level);

// Receives one message without a line end, on the thread that logs it. It may be called from
// several threads at once. Its exceptions are dropped, because logging must not make the logged
// operation fail.
using LogSink = std::function<void(LogLevel level, std::string_view message)>;

// Sets the level for the process. The default is kWarning.
void set_log_level(LogLevel level);

// Sets the sink for the process. An empty `sink` restores the default: the default sink if there is
// one, else a line on stderr.
void set_log_sink(LogSink sink);

// Sets the default sink, which is used while set_log_sink() has set none, and sets the level to
// kDebug. A program with its own logging, such as Python, filters the messages itself.
void set_default_log_sink(LogSink sink);

// Sets the level and removes the default sink, so that messages go to stderr. Engine calls it if
// LAZYROPE_LOG is set.
void log_to_stderr(LogLevel level);

// Returns true if a message of `level` would reach the sink.
bool log_enabled(LogLevel level);

// Passes `message` to the sink without checking the level.
void write_log(LogLevel level, std::string_view message) noexcept;

// Formats and logs a message. Does nothing when `level` is not enabled.
template <class... Args>
void log_message(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) write_log(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace lazyrope
