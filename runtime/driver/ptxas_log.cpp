#include "runtime/driver/ptxas_log.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace lazyrope {
namespace {

std::string_view trim_left(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

// Extracts the text of "ptxas info    : text" and "ptxas         .     text"; other lines give "".
std::string_view ptxas_text(std::string_view line) {
  if (!line.starts_with("ptxas ")) return {};
  const auto separator = line.find_first_of(":.");
  return separator == std::string_view::npos ? "" : trim_left(line.substr(separator + 1));
}

// Returns the text after `prefix`, or "" if `text` does not start with it.
std::string_view after(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : std::string_view();
}

int parse_int(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Reads "296 bytes stack frame, 780 bytes spill stores, 804 bytes spill loads".
void read_frame(std::string_view text, PtxasFunction& function) {
  while (!text.empty()) {
    const auto comma = std::min(text.find(','), text.size());
    const std::string_view item = trim_left(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
    const int amount = parse_int(item);
    if (item.ends_with(" bytes stack frame")) function.stack_bytes = amount;
    if (item.ends_with(" bytes spill stores")) function.spill_store_bytes = amount;
    if (item.ends_with(" bytes spill loads")) function.spill_load_bytes = amount;
  }
}

// A kernel's report has four lines: "Compiling entry function", "Function properties for", its
// frame, "Used ...". A device function's report has "Function properties for" and its frame only.
class Parser {
 public:
  void read_line(std::string_view line) {
    const std::string_view text = ptxas_text(line);
    if (const auto entry = after(text, "Compiling entry function '"); !entry.empty()) {
      kernel_ = entry.substr(0, entry.find('\''));
    } else if (const auto name = after(text, "Function properties for "); !name.empty()) {
      begin_function(name);
    } else if (!functions_.empty()) {
      read_amounts(text);
    }
  }

  std::vector<PtxasFunction> take() { return std::move(functions_); }

 private:
  void begin_function(std::string_view name) {
    PtxasFunction& function = functions_.emplace_back();
    function.name = name;
    function.is_kernel = name == kernel_;
  }

  void read_amounts(std::string_view text) {
    if (text.find("bytes stack frame") != std::string_view::npos) {
      read_frame(text, functions_.back());
    } else if (const auto used = after(text, "Used "); !used.empty()) {
      functions_.back().registers = parse_int(used);
    }
  }

  std::vector<PtxasFunction> functions_;
  std::string_view kernel_;
};

}  // namespace

std::vector<PtxasFunction> parse_ptxas_log(std::string_view log) {
  Parser parser;
  while (!log.empty()) {
    const auto end = std::min(log.find('\n'), log.size());
    parser.read_line(log.substr(0, end));
    log.remove_prefix(std::min(end + 1, log.size()));
  }
  return parser.take();
}

}  // namespace lazyrope
