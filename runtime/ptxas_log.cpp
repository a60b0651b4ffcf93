#include "runtime/ptxas_log.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

namespace lazyrope {
namespace {

std::string_view trim_left(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

// "ptxas info    : text", "ptxas         .     text" -> "text"; other lines of the log -> "".
std::string_view ptxas_text(std::string_view line) {
  if (!line.starts_with("ptxas ")) return {};
  const auto separator = line.find_first_of(":.");
  return separator == std::string_view::npos ? "" : trim_left(line.substr(separator + 1));
}

// What follows `prefix`; empty when `text` starts otherwise.
std::string_view after(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : std::string_view();
}

int parse_int(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Calls visit(number, unit) for each item of "Used 14 registers, used 1 barriers, 1024 bytes smem".
template <class Visitor>
void for_each_amount(std::string_view text, Visitor visit) {
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    std::string_view item = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    item = item.substr(std::min(item.find_first_of("0123456789"), item.size()));
    const auto space = std::min(item.find(' '), item.size());
    visit(parse_int(item.substr(0, space)), trim_left(item.substr(space)));
  }
}

void read_frame(std::string_view text, PtxasFunction& function) {
  for_each_amount(text, [&](int amount, std::string_view unit) {
    if (unit == "bytes stack frame") function.stack_bytes = amount;
    if (unit == "bytes spill stores") function.spill_store_bytes = amount;
    if (unit == "bytes spill loads") function.spill_load_bytes = amount;
  });
}

void read_usage(std::string_view text, PtxasFunction& function) {
  for_each_amount(text, [&](int amount, std::string_view unit) {
    if (unit == "registers") function.registers = amount;
    if (unit == "barriers") function.barriers = amount;
    if (unit == "bytes smem") function.static_shared_bytes = amount;
    if (unit.starts_with("bytes cmem")) function.constant_bytes += amount;
  });
}

bool is_remark(std::string_view line, std::string_view text) {
  const bool numbered = text.size() > 2 && text.starts_with("(C") &&
                        std::isdigit(static_cast<unsigned char>(text[2])) != 0;
  return numbered || line.starts_with("ptxas warning");
}

// The report of a kernel is: "Compiling entry function", "Function properties for", its frame,
// "Used ...". Device functions have "Function properties for" and a frame only.
class Parser {
 public:
  void read_line(std::string_view line) {
    const std::string_view text = ptxas_text(line);
    if (is_remark(line, text)) {
      log_.remarks.emplace_back(text);
    } else if (const auto entry = after(text, "Compiling entry function '"); !entry.empty()) {
      kernel_ = entry.substr(0, entry.find('\''));
    } else if (const auto name = after(text, "Function properties for "); !name.empty()) {
      begin_function(name);
    } else if (!log_.functions.empty()) {
      read_amounts(text);
    }
  }

  PtxasLog take() { return std::move(log_); }

 private:
  void begin_function(std::string_view name) {
    PtxasFunction& function = log_.functions.emplace_back();
    function.name = name;
    function.is_kernel = name == kernel_;
  }

  void read_amounts(std::string_view text) {
    if (text.find("bytes stack frame") != std::string_view::npos) {
      read_frame(text, log_.functions.back());
    } else if (text.starts_with("Used ")) {
      read_usage(text, log_.functions.back());
    }
  }

  PtxasLog log_;
  std::string_view kernel_;
};

}  // namespace

const PtxasFunction* PtxasLog::find(std::string_view name) const noexcept {
  const auto found = std::find_if(functions.begin(), functions.end(),
                                  [&](const PtxasFunction& f) { return f.name == name; });
  return found == functions.end() ? nullptr : &*found;
}

PtxasLog parse_ptxas_log(std::string_view log) {
  Parser parser;
  while (!log.empty()) {
    const auto end = std::min(log.find('\n'), log.size());
    parser.read_line(log.substr(0, end));
    log.remove_prefix(std::min(end + 1, log.size()));
  }
  return parser.take();
}

}  // namespace lazyrope
