#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/tensor.h"

namespace lazyrope {

// Makes the process write its trace to this file, or write none if the path is empty. Engine calls
// it with LAZYROPE_TRACE.
//
// The file is a JSON array of events in Chrome's trace format
// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), for
// chrome://tracing, Perfetto or speedscope. After each event it is whole, so it can be read while
// the process runs and after it was killed. Several processes may write to one file, and events are
// added to a file that has some. A file that this library has not begun is left as it is. If the
// file cannot be written, or another process holds its lock for a second, that is logged, and there
// is no trace from then on.
void trace_to(std::string path);

// Returns true if the process writes a trace.
bool is_tracing() noexcept;

// An event that is written when it ends: a call with its arguments and its duration on the host. A
// kernel's time on a GPU is not in it. The constructor costs a nanosecond while there is no trace.
class TraceSpan {
 public:
  // `name` must be a literal.
  explicit TraceSpan(const char* name) noexcept;
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan();

  // Adds an argument: a number, a text, or a tensor, of which the type and the shape are written.
  // A function is called for its value only if there is a trace.
  template <class Value>
  TraceSpan& with(const char* key, const Value& value) {
    if (name_ == nullptr) return *this;
    if constexpr (std::is_invocable_v<Value>)
      add(key, value());
    else
      add(key, value);
    return *this;
  }

 private:
  void add(const char* key, std::int64_t value);
  void add(const char* key, std::string_view value);
  void add(const char* key, const TensorView& tensor);

  const char* name_;  // null: there is no trace
  int exceptions_ = 0;
  std::chrono::steady_clock::time_point begin_;
  std::vector<std::pair<const char*, std::variant<std::int64_t, std::string>>> arguments_;
};

// Writes an event of a caller that has measured it, such as Python. `begin` and `end` are times of
// std::chrono::steady_clock, and `arguments` is a JSON object.
void write_trace_event(std::string_view name, std::chrono::nanoseconds begin,
                       std::chrono::nanoseconds end, const nlohmann::json& arguments);

}  // namespace lazyrope
