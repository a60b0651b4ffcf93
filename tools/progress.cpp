#include "tools/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "runtime/log.h"

namespace lazyrope {
namespace {

constexpr std::string_view kEraseLine = "\r\033[K";

void write(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace

Progress::Progress(std::size_t total) : shown_(::isatty(STDERR_FILENO) == 1), total_(total) {
  if (!shown_) return;
  set_log_sink([this](LogLevel level, std::string_view message) {
    write_above(fmt::format("lazyrope: {}: {}\n", to_string(level), message));
  });
}

Progress::~Progress() {
  if (!shown_) return;
  set_log_sink({});
  write(kEraseLine);
}

void Progress::next(std::string_view what) {
  if (!shown_) return;
  const std::lock_guard lock(mutex_);
  ++count_;
  show(what);
}

void Progress::say(std::string_view what) {
  if (!shown_) return;
  const std::lock_guard lock(mutex_);
  show(what);
}

void Progress::show(std::string_view what) {
  line_ = fmt::format("[{}/{}] {}", count_, total_, what);
  write(fmt::format("{}{}", kEraseLine, line_));
}

void Progress::write_above(std::string_view line) {
  const std::lock_guard lock(mutex_);
  write(fmt::format("{}{}{}", kEraseLine, line, line_));
}

}  // namespace lazyrope
