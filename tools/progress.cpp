#include "tools/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "runtime/base/log.h"

namespace lazyrope {
namespace {

constexpr std::string_view kEraseLine = "\r\033[K";
constexpr std::size_t kBarWidth = 30;
constexpr std::size_t kDefaultWidth = 80;  // columns, if the terminal reports no width

void write(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

std::size_t terminal_width() {
  winsize size = {};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : kDefaultWidth;
}

std::string outcome(const KernelResult& result) {
  if (result.kernel == nullptr) return "failed";
  return fmt::format("{:.1f} s{}", result.kernel->ready_ms() / 1e3,
                     result.spills() ? ", spills registers" : "");
}

}  // namespace

Progress::Progress() : is_terminal_(::isatty(STDERR_FILENO) == 1) {
  if (!is_terminal_) return;
  set_log_sink([this](LogLevel level, std::string_view message) {
    write_above(fmt::format("lazyrope: {}: {}\n", to_string(level), message));
  });
}

Progress::~Progress() {
  if (!is_terminal_) return;
  set_log_sink({});
  write(kEraseLine);
}

void Progress::on_begin(std::size_t kernels) {
  const std::lock_guard lock(mutex_);
  total_ += kernels;
  if (is_terminal_) draw();
}

void Progress::on_result(const KernelRequest& request, const KernelResult& result) {
  const std::lock_guard lock(mutex_);
  ++done_;
  latest_ = fmt::format("{}: {} for {}", request.name, to_string(request.rendered.kind),
                        request.arch->name);
  if (is_terminal_)
    draw();
  else if (result.kernel == nullptr || !result.kernel->from_cache())
    write(fmt::format("[{}/{}] {}, {}\n", done_, total_, latest_, outcome(result)));
}

void Progress::set_status(std::string_view what) {
  if (!is_terminal_) return;
  const std::lock_guard lock(mutex_);
  latest_ = what;
  draw();
}

// The bar is cut to the width of the terminal, because a wrapped line cannot be erased.
void Progress::draw() {
  const std::size_t filled = total_ == 0 ? 0 : kBarWidth * done_ / total_;
  const std::string line = fmt::format("[{:-<{}}] {}/{} {}", std::string(filled, '#'), kBarWidth,
                                       done_, total_, latest_);
  write(fmt::format("{}{}", kEraseLine, line.substr(0, terminal_width() - 1)));
}

void Progress::write_above(std::string_view line) {
  const std::lock_guard lock(mutex_);
  write(fmt::format("{}{}", kEraseLine, line));
  draw();
}

}  // namespace lazyrope
