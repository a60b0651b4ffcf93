#include "runtime/base/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/fork.h"
#include "runtime/base/log.h"

namespace lazyrope {
namespace {

// The first and the last bytes of a trace. JSON objects are written with their keys in order.
constexpr std::string_view kBegin = "[\n{\"args\":";
constexpr std::string_view kEnd = "\n]\n";

std::runtime_error system_error(const std::string& path) {
  return std::runtime_error(fmt::format("{}: {}", path, std::strerror(errno)));
}

// The open file of one process.
class TraceFile {
 public:
  explicit TraceFile(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666)) {
    if (file_ < 0) throw system_error(path_);
  }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile() { ::close(file_); }

  // Writes the event over the end of the array, and the end after it. If that fails, the file
  // becomes what it was.
  void append(const std::string& event) const {
    const Lock lock(*this);
    const ::off_t end = end_of_events();
    try {
      write(fmt::format("{}{}{}", end == 0 ? "[\n" : ",\n", event, kEnd), end);
    } catch (const std::runtime_error&) {
      if (::ftruncate(file_, end) == 0 && end > 0) write(kEnd, end);
      throw;
    }
  }

 private:
  // Holds the lock of the file, if its file system has locks.
  class Lock {
   public:
    explicit Lock(const TraceFile& file) : file_(file.file_) {
      constexpr std::chrono::seconds kLimit{1};
      constexpr std::chrono::milliseconds kPause{1};
      const auto begin = std::chrono::steady_clock::now();
      while (::flock(file_, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
        if (std::chrono::steady_clock::now() - begin > kLimit)
          throw std::runtime_error(file.path_ + " is locked by another process");
        std::this_thread::sleep_for(kPause);
      }
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    ~Lock() { ::flock(file_, LOCK_UN); }

   private:
    int file_;
  };

  // Returns where the last event ends, or 0 in an empty file.
  ::off_t end_of_events() const {
    struct ::stat status = {};
    if (::fstat(file_, &status) != 0) throw system_error(path_);
    if (!S_ISREG(status.st_mode)) throw std::runtime_error(path_ + " is not a regular file");
    if (status.st_size == 0) return 0;
    const auto end = status.st_size - static_cast<::off_t>(kEnd.size());
    if (!has(kBegin, 0) || !has(kEnd, end))
      throw std::runtime_error(path_ + " is there already and is not a trace; remove it");
    return end;
  }

  bool has(std::string_view text, ::off_t at) const {
    std::string found(text.size(), '\0');
    return at >= 0 && ::pread(file_, found.data(), found.size(), at) == std::ssize(found) &&
           found == text;
  }

  void write(std::string_view text, ::off_t at) const {
    while (!text.empty()) {
      const ::ssize_t written = ::pwrite(file_, text.data(), text.size(), at);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) throw system_error(path_);
      text.remove_prefix(static_cast<std::size_t>(written));
      at += written;
    }
  }

  std::string path_;
  int file_;
};

// A child of fork() opens the file again, because a lock belongs to an open file.
struct Trace {
  explicit Trace(std::string path)
      : file([path = std::move(path)] { return std::make_unique<TraceFile>(path); }) {}
  ForkMutex mutex;
  PerProcess<TraceFile> file;
};

// A trace is never destroyed: threads may be writing to it.
std::atomic<Trace*> the_trace = nullptr;

double microseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

}  // namespace

void trace_to(std::string path) {
  static auto& all = *new std::vector<std::unique_ptr<Trace>>;
  static constinit ForkMutex mutex;
  if (path.empty()) return the_trace.store(nullptr, std::memory_order_release);
  const std::lock_guard lock(mutex);
  all.push_back(std::make_unique<Trace>(std::move(path)));
  the_trace.store(all.back().get(), std::memory_order_release);
}

bool is_tracing() noexcept { return the_trace.load(std::memory_order_relaxed) != nullptr; }

void write_trace_event(std::string_view name, std::chrono::nanoseconds begin,
                       std::chrono::nanoseconds end, const nlohmann::json& arguments) {
  Trace* trace = the_trace.load(std::memory_order_acquire);
  if (trace == nullptr) return;
  const nlohmann::json event = {{"name", name},
                                {"cat", "lazyrope"},
                                {"ph", "X"},
                                {"ts", microseconds(begin)},
                                {"dur", microseconds(end - begin)},
                                {"pid", ::getpid()},
                                {"tid", ::gettid()},
                                {"args", arguments}};
  try {
    const std::lock_guard lock(trace->mutex);
    trace->file.get().append(event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } catch (const std::runtime_error& error) {
    if (the_trace.compare_exchange_strong(trace, nullptr))
      log_message(LogLevel::kWarning, "there is no trace: {}; see LAZYROPE_TRACE", error.what());
  }
}

TraceSpan::TraceSpan(const char* name) noexcept : name_(is_tracing() ? name : nullptr) {
  if (name_ == nullptr) return;
  exceptions_ = std::uncaught_exceptions();
  begin_ = std::chrono::steady_clock::now();
}

// The call that is traced must not fail for want of memory for its event.
TraceSpan::~TraceSpan() {
  if (name_ == nullptr) return;
  try {
    const auto end = std::chrono::steady_clock::now();
    nlohmann::json arguments = nlohmann::json::object();
    for (const auto& [key, value] : arguments_)
      std::visit([&](const auto& held) { arguments[key] = held; }, value);
    if (std::uncaught_exceptions() > exceptions_) arguments["failed"] = true;
    write_trace_event(name_, begin_.time_since_epoch(), end.time_since_epoch(), arguments);
  } catch (const std::exception&) {
    write_log(LogLevel::kWarning, "an event of the trace is lost");
  }
}

void TraceSpan::add(const char* key, std::int64_t value) { arguments_.emplace_back(key, value); }

void TraceSpan::add(const char* key, std::string_view value) {
  arguments_.emplace_back(key, std::string(value));
}

void TraceSpan::add(const char* key, const TensorView& tensor) {
  const auto shape = std::span(tensor.shape).first(static_cast<std::size_t>(tensor.rank));
  add(key,
      std::string_view(fmt::format("{} [{}]", to_string(tensor.type), fmt::join(shape, ", "))));
}

}  // namespace lazyrope
