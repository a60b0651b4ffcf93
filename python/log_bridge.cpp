#include "python/log_bridge.h"

#include <fmt/format.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/fork.h"
#include "runtime/base/log.h"

namespace lazyrope {
namespace {

namespace py = pybind11;

struct Message {
  LogLevel level;
  std::string text;
};

// A queue of messages for the logger. Its mutex is held during a push or a swap alone, so no thread
// waits for the interpreter's lock while it holds the mutex.
class Queue {
 public:
  void push(LogLevel level, std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (messages_.size() == kMaxMessages) {
      ++dropped_;
    } else {
      messages_.push_back({level, std::string(text)});
    }
    is_waiting_.store(true, std::memory_order_release);
  }

  std::vector<Message> take() {
    const std::lock_guard lock(mutex_);
    is_waiting_.store(false, std::memory_order_release);
    if (dropped_ > 0)
      messages_.push_back({LogLevel::kWarning, fmt::format("{} more messages were not kept for the "
                                                           "logger",
                                                           std::exchange(dropped_, 0))});
    return std::exchange(messages_, {});
  }

  bool is_waiting() const { return is_waiting_.load(std::memory_order_acquire); }

 private:
  static constexpr std::size_t kMaxMessages = 1000;

  std::mutex mutex_;
  std::vector<Message> messages_;
  std::size_t dropped_ = 0;
  std::atomic<bool> is_waiting_ = false;
};

// Each process has its own queue, so a child does not deliver the parent's messages once more. The
// queues are never destroyed, because destructors of other objects may log at exit.
PerProcess<Queue>& queues() {
  static auto& all = *new PerProcess<Queue>;
  return all;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_queues() { (void)queues(); }

int python_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return 10;
    case LogLevel::kInfo:
      return 20;
    default:
      return 30;
  }
}

}  // namespace

void bridge_log() {
  set_default_log_sink(
      [](LogLevel level, std::string_view text) { queues().get().push(level, text); });
  // Ctrl-C during a first import would be lost: Python ignores exceptions in some of its callbacks.
  py::module_::import("logging");
  py::module_::import("atexit").attr("register")(py::cpp_function(&deliver_log));
}

bool log_is_waiting() { return queues().get().is_waiting(); }

// NOLINTNEXTLINE(bugprone-exception-escape): pybind11's error types do not throw here
void deliver_log() noexcept {
  try {
    const py::error_scope saved;  // an error may be on its way to Python
    const py::object log = py::module_::import("logging").attr("getLogger")("lazyrope").attr("log");
    for (const Message& message : queues().get().take())
      log(python_level(message.level), "%s", message.text);
  } catch (py::error_already_set& error) {
    // Python runs its signal handlers while it logs. An interrupt that arrives there must still end
    // the call that logged, so it is raised again at the next check.
    if (error.matches(PyExc_KeyboardInterrupt))
      PyErr_SetInterrupt();
    else
      error.discard_as_unraisable("a handler of the logger \"lazyrope\"");
  } catch (...) {  // NOLINT(bugprone-empty-catch): a message must not make its cause fail
  }
}

}  // namespace lazyrope
