#include "runtime/driver/nvrtc.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/interruption.h"

namespace lazyrope {
namespace {

constexpr std::size_t kMaxExcerpts = 8;  // one mistake can give a hundred errors

// Counts the programs of this process, and remembers in its children whether there was one.
std::atomic<int> programs = 0;
std::atomic<bool> was_running_at_fork = false;

[[gnu::constructor]] void remember_at_forks() {
  ::pthread_atfork(nullptr, nullptr, [] {
    if (programs.exchange(0) > 0) was_running_at_fork = true;
  });
}

// Counts one program.
class InNvrtc {
 public:
  InNvrtc() { ++programs; }
  InNvrtc(const InNvrtc&) = delete;
  InNvrtc& operator=(const InNvrtc&) = delete;
  ~InNvrtc() { --programs; }
};

// NVRTC calls this function while it compiles, and ends when it returns 1.
int asks_to_stop(void* stop, void*) {
  return static_cast<const std::stop_token*>(stop)->stop_requested() ? 1 : 0;
}

// Returns the line numbers that follow `marker` in `log`: 12 for the marker "k.cu(" and "k.cu(12):
// error".
std::set<int> mentioned_lines(std::string_view log, std::string_view marker) {
  std::set<int> lines;
  for (auto at = log.find(marker); at != std::string_view::npos; at = log.find(marker, at)) {
    at += marker.size();
    int line = 0;
    std::from_chars(log.data() + at, log.data() + log.size(), line);
    if (line > 0 && lines.size() < kMaxExcerpts) lines.insert(line);
  }
  return lines;
}

// Removes the first line from the text and returns it.
std::string_view take_line(std::string_view& text) {
  const auto end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

// The file and number of the line after `#line 12 "ops/combine.cuh"`.
struct LineMark {
  int number;
  std::string file;
};

std::optional<LineMark> line_mark(std::string_view line) {
  constexpr std::string_view kMark = "#line ";
  const auto quote = line.find('"');
  if (!line.starts_with(kMark) || quote == std::string_view::npos) return std::nullopt;
  LineMark mark{0, std::string(line.substr(quote + 1, line.rfind('"') - quote - 1))};
  std::from_chars(line.data() + kMark.size(), line.data() + quote, mark.number);
  return mark;
}

// Returns the lines that the log names, marked with '>', and one line before and after each, all
// numbered. `marker` maps a file to the text before its line numbers in the log.
template <class Marker>
std::string numbered_excerpt(std::string_view text, std::string file, std::string_view log,
                             const Marker& marker) {
  std::string excerpt;
  std::set<int> centres = mentioned_lines(log, marker(file));
  std::string heading;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (const auto mark = line_mark(line)) {
      number = mark->number - 1;
      if (mark->file == file) continue;
      file = mark->file;
      centres = mentioned_lines(log, marker(file));
      heading = file + ":\n";
      continue;
    }
    const auto near = centres.lower_bound(number - 1);
    if (near == centres.end() || *near > number + 1) continue;
    excerpt += fmt::format("{}{}{:5} | {}\n", std::exchange(heading, ""),
                           centres.contains(number) ? '>' : ' ', number, line);
  }
  return excerpt;
}

std::string source_excerpt(const ProgramSource& program, std::string_view log) {
  return numbered_excerpt(program.source, program.name, log,
                          [](const std::string& file) { return file + "("; });
}

std::string ptx_excerpt(std::string_view ptx, std::string_view log) {
  return numbered_excerpt(ptx, "", log, [](const std::string&) { return "ptx input, line "; });
}

// One nvrtcProgram. Every failure is a CompileError.
class Program {
 public:
  Program(const NvrtcLibrary& nvrtc, const ProgramSource& program, std::stop_token stop = {})
      : nvrtc_(nvrtc), api_(nvrtc.api()), source_(program), stop_(std::move(stop)) {
    const nvrtcResult result = api_.create_program(&handle_, program.source.c_str(),
                                                   program.name.c_str(), 0, nullptr, nullptr);
    if (result != NVRTC_SUCCESS) fail(result);
    if (api_.set_flow_callback != nullptr) api_.set_flow_callback(handle_, asks_to_stop, &stop_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { api_.destroy_program(&handle_); }

  // Compiles, and returns the milliseconds that it took.
  double compile() {
    std::vector<const char*> options;
    options.reserve(source_.options.size());
    for (const std::string& option : source_.options) options.push_back(option.c_str());
    const auto begin = std::chrono::steady_clock::now();
    const nvrtcResult result =
        api_.compile_program(handle_, static_cast<int>(options.size()), options.data());
    throw_if_stopped(stop_);
    if (result != NVRTC_SUCCESS) fail(result);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    return took.count();
  }

  std::vector<std::byte> cubin() const {
    const std::string bytes = read(api_.get_cubin_size, api_.get_cubin);
    if (bytes.empty()) refuse("a cubin needs a real architecture: --gpu-architecture=sm_XX");
    const auto view = std::as_bytes(std::span(bytes));
    return {view.begin(), view.end()};
  }

  std::string ptx() const {
    std::string text = read_text(api_.get_ptx_size, api_.get_ptx);
    if (text.empty()) refuse("these options generate no PTX: leave out -dlto and --optix-ir");
    return text;
  }

  std::string log() const { return read_text(api_.get_program_log_size, api_.get_program_log); }

 private:
  using SizeQuery = nvrtcResult (*)(nvrtcProgram, std::size_t*);
  using Read = nvrtcResult (*)(nvrtcProgram, char*);

  std::string read(SizeQuery query_size, Read read_bytes) const {
    std::size_t size = 0;
    if (query_size(handle_, &size) != NVRTC_SUCCESS) return "";
    std::string bytes(size, '\0');
    return read_bytes(handle_, bytes.data()) == NVRTC_SUCCESS ? bytes : "";
  }

  // NVRTC's texts end in a NUL.
  std::string read_text(SizeQuery query_size, Read read_bytes) const {
    std::string text = read(query_size, read_bytes);
    while (!text.empty() && (text.back() == '\0' || text.back() == '\n')) text.pop_back();
    return text;
  }

  [[noreturn]] void fail(nvrtcResult result) const {
    throw CompileError(describe_failure(api_.get_error_string(result), advice(result)));
  }

  [[noreturn]] void refuse(const char* advice) const {
    throw CompileError(describe_failure("nothing was generated", advice));
  }

  CompileFailure describe_failure(const char* reason, std::string advice) const;
  std::string advice(nvrtcResult result) const;

  const NvrtcLibrary& nvrtc_;
  const NvrtcTable& api_;
  const ProgramSource& source_;
  std::stop_token stop_;
  InNvrtc counted_;
  nvrtcProgram handle_ = nullptr;
};

CompileFailure Program::describe_failure(const char* reason, std::string advice) const {
  CompileFailure failure;
  failure.what_failed =
      fmt::format("NVRTC {}.{} could not compile '{}': {}", nvrtc_.version().major,
                  nvrtc_.version().minor, source_.name, reason);
  failure.source = source_.name;
  failure.options = source_.options;
  failure.log = log();
  failure.excerpt = source_excerpt(source_, failure.log);
  if (failure.excerpt.empty()) {
    failure.excerpt = ptx_excerpt(read_text(api_.get_ptx_size, api_.get_ptx), failure.log);
  }
  failure.advice = std::move(advice);
  return failure;
}

std::string Program::advice(nvrtcResult result) const {
  switch (result) {
    case NVRTC_ERROR_INVALID_OPTION:
      return fmt::format("this NVRTC compiles for sm_{}; see its log for the option it rejects",
                         fmt::join(nvrtc_.supported_archs(), ", sm_"));
    case NVRTC_ERROR_BUILTIN_OPERATION_FAILURE:
      return fmt::format("reinstall NVRTC: {} and {} do not belong together", nvrtc_.path(),
                         nvrtc_.builtins_path());
    case NVRTC_ERROR_OUT_OF_MEMORY:
      return "compile fewer kernels at once: each takes about 40 MB of host memory";
    default:
      return "if the source is lazyrope's own, please report this message; LAZYROPE_DUMP_DIR keeps "
             "the source";
  }
}

}  // namespace

CompiledProgram compile_program(const NvrtcLibrary& nvrtc, const ProgramSource& program,
                                std::stop_token stop) {
  Program compilation(nvrtc, program, std::move(stop));
  const double milliseconds = compilation.compile();
  return {compilation.cubin(), compilation.log(), milliseconds};
}

PtxProgram compile_to_ptx(const NvrtcLibrary& nvrtc, const ProgramSource& program) {
  Program compilation(nvrtc, program);
  const double milliseconds = compilation.compile();
  return {compilation.ptx(), compilation.log(), milliseconds};
}

bool nvrtc_was_running_at_fork() { return was_running_at_fork; }

}  // namespace lazyrope
