// Compiles every row of tests/compile/table.h for GPU archs, with every head_dim and dtype, and
// writes tests/compile/results/ARCH.csv. Exits with 1 if a kernel spills with every config, or if
// the compiler warns.
//
//   compile_all [--row NAME]... [--head-dim N]... [ARCH...]  # all of each by default
//
// With --row or --head-dim it compiles these alone, and keeps the other lines of the tables.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <stdexcept>
#include <tuple>
#include <unordered_map>

#include "codegen/error.h"
#include "codegen/render.h"
#include "runtime/base/parallel.h"
#include "tests/compile/kernel_report.h"
#include "tests/compile/table.h"

namespace lazyrope {
namespace {

struct Line {
  std::size_t row;
  int head_dim;
  std::string dtypes;  // dtypes for which all but `sass` is the same
  KernelKind kind;
  std::size_t config;
  int shared_bytes;
  KernelReport report;
  std::string sass;  // a digest for each dtype

  auto sort_key() const { return std::tie(row, head_dim, kind); }
  bool differs_in_dtype_only(const Line& other) const {
    return sort_key() == other.sort_key() && config == other.config &&
           shared_bytes == other.shared_bytes && report.differs_in_sass_only(other.report);
  }
};

// Prints progress to stderr after every tenth of the kernels.
class Progress {
 public:
  Progress(std::string what, std::size_t total) : what_(std::move(what)), total_(total) {}

  void next() {
    const std::lock_guard lock(mutex_);
    ++done_;
    if (done_ * 10 / total_ != (done_ - 1) * 10 / total_)
      fmt::print(stderr, "{}: {} of {} kernels\n", what_, done_, total_);
  }

 private:
  std::string what_;
  std::size_t total_;
  std::size_t done_ = 0;
  std::mutex mutex_;
};

// The rows and head_dims that are compiled.
struct Selection {
  std::set<std::size_t> rows;  // indices in table_rows()
  std::set<int> head_dims;

  bool has(std::size_t row, int head_dim) const {
    return rows.contains(row) && head_dims.contains(head_dim);
  }
  bool has(const TableSetting& setting) const { return has(setting.row, setting.spec.head_dim); }
};

class ArchTable {
 public:
  ArchTable(const Arch& arch, const Selection& selection)
      : arch_(arch), selection_(selection), settings_(table_settings(arch)) {}

  // Compiles every setting. If a config spills, the next one is compiled, as in Attention::compile.
  void compile() {
    do compile_new_kernels();
    while (replace_spilling_configs());
  }

  std::size_t kernels() const { return reports_.size(); }

  // Returns a line for each attend kernel of each compiled setting, and one for each other source
  // that no earlier row has.
  std::vector<Line> lines() const {
    std::vector<Line> lines;
    std::set<std::string> listed;
    for (const TableSetting& setting : settings_)
      for (const RenderedKernel& kernel : kernels_of(setting))
        if ((listed.insert(kernel.source).second || is_attend(kernel.kind)) &&
            selection_.has(setting))
          lines.push_back({setting.row, setting.spec.head_dim,
                           std::string(to_string(setting.spec.dtype)), kernel.kind, setting.config,
                           kernel.shared_bytes, reports_.at(kernel.source),
                           reports_.at(kernel.source).sass});
    return merged(std::move(lines));
  }

 private:
  std::vector<RenderedKernel> kernels_of(const TableSetting& setting) const {
    const KernelConfig config = configs(setting.spec, arch_).at(setting.config);
    std::vector<RenderedKernel> kernels;
    for (const KernelKind kind : kernel_kinds(setting.spec, arch_))
      kernels.push_back(render(kind, setting.spec, config, arch_));
    return kernels;
  }

  void compile_new_kernels() {
    std::vector<RenderedKernel> fresh;
    for (const TableSetting& setting : settings_) {
      if (!selection_.has(setting)) continue;
      for (RenderedKernel& kernel : kernels_of(setting))
        if (reports_.try_emplace(kernel.source).second) fresh.push_back(std::move(kernel));
    }
    Progress progress(arch_.name, fresh.size());
    for_each_parallel(fresh.size(), thread_count(0), [&](std::size_t i) {
      reports_.at(fresh[i].source) = compile_for_report(fresh[i], arch_);
      progress.next();
    });
  }

  bool spills(const TableSetting& setting) const {
    return std::ranges::any_of(kernels_of(setting), [&](const RenderedKernel& kernel) {
      return reports_.at(kernel.source).spill_bytes > 0;
    });
  }

  bool replace_spilling_configs() {
    bool any = false;
    for (TableSetting& setting : settings_)
      if (selection_.has(setting) && setting.config + 1 < configs(setting.spec, arch_).size() &&
          spills(setting)) {
        ++setting.config;
        any = true;
      }
    return any;
  }

  static std::vector<Line> merged(std::vector<Line> lines) {
    std::ranges::stable_sort(lines, {}, &Line::sort_key);
    std::vector<Line> result;
    for (Line& line : lines)
      if (!result.empty() && result.back().differs_in_dtype_only(line)) {
        result.back().dtypes += " " + line.dtypes;
        result.back().sass += " " + line.report.sass;
      } else {
        result.push_back(std::move(line));
      }
    return result;
  }

  const Arch& arch_;
  const Selection& selection_;
  std::vector<TableSetting> settings_;
  std::unordered_map<std::string, KernelReport> reports_;  // keyed by the kernel's source
};

std::string text_of(const Line& line) {
  return fmt::format("{},{},{},{},{},{},{},{},{},{}", table_rows().at(line.row).name, line.head_dim,
                     line.dtypes, to_string(line.kind), line.config, line.report.registers,
                     line.report.spill_bytes, line.shared_bytes, line.report.cubin_bytes,
                     line.sass);
}

std::size_t row_named(std::string_view name) {
  const std::vector<TableRow> rows = table_rows();
  const auto row = std::ranges::find(rows, name, &TableRow::name);
  if (row == rows.end()) throw SpecError(fmt::format("there is no row \"{}\"", name));
  return static_cast<std::size_t>(row - rows.begin());
}

// A line of a table, with the index of its row and its head_dim.
using NumberedLine = std::pair<std::pair<std::size_t, int>, std::string>;

// Returns the table's first line and its lines that are not selected.
std::pair<std::string, std::vector<NumberedLine>> read_others(const Arch& arch,
                                                              const Selection& selection) {
  std::ifstream file(table_path(arch));
  std::string head;
  std::string line;
  std::getline(file, head);
  std::getline(file, line);
  std::vector<NumberedLine> others;
  while (std::getline(file, line)) {
    const std::size_t comma = line.find(',');
    const std::size_t row = row_named(line.substr(0, comma));
    const int head_dim = std::stoi(line.substr(comma + 1));
    if (!selection.has(row, head_dim)) others.emplace_back(std::pair(row, head_dim), line);
  }
  return {head, others};
}

void write_table(const Arch& arch, const Selection& selection, const std::vector<Line>& lines) {
  std::filesystem::create_directories(std::filesystem::path(table_path(arch)).parent_path());
  const std::string present =
      fmt::format("# {}, NVRTC {}, {:%Y-%m-%d}, by `make compile-all`", arch.name,
                  shared_engine().nvrtc().library().identity(), fmt::gmtime(std::time(nullptr)));
  auto [head, all] = read_others(arch, selection);
  head = all.empty() ? present
                     : fmt::format("{}; {} rows of head_dim {}: {}", head, selection.rows.size(),
                                   fmt::join(selection.head_dims, ", "), present.substr(2));
  for (const Line& line : lines)
    all.emplace_back(std::pair(line.row, line.head_dim), text_of(line));
  std::ranges::stable_sort(all, {}, &NumberedLine::first);
  std::ofstream file(table_path(arch));
  file << head << '\n' << kTableHead << '\n';
  for (const auto& [row, line] : all) file << line << '\n';
  if (!file.flush()) throw std::runtime_error("cannot write " + table_path(arch));
}

// Compiles what is selected for an arch and writes its table. Returns the number of kernels with a
// problem.
std::ptrdiff_t compile_arch(const Arch& arch, const Selection& selection) {
  const auto begin = std::chrono::steady_clock::now();
  ArchTable table(arch, selection);
  table.compile();
  const std::vector<Line> lines = table.lines();
  write_table(arch, selection, lines);
  for (const Line& line : lines)
    if (!line.report.problem.empty())
      fmt::print(stderr, "{}: {}: {}\n", arch.name, text_of(line), line.report.problem);
  const auto seconds = std::chrono::steady_clock::now() - begin;
  fmt::print("{}: {} kernels in {:.0f} s: {}\n", arch.name, table.kernels(),
             std::chrono::duration<double>(seconds).count(), table_path(arch));
  return std::ranges::count_if(lines,
                               [](const Line& line) { return !line.report.problem.empty(); });
}

// Removes each "OPTION VALUE" from the arguments. Returns the values.
std::vector<std::string> take(std::vector<std::string>& arguments, std::string_view option) {
  std::vector<std::string> values;
  for (auto it = arguments.begin(); it != arguments.end();) {
    if (*it != option) {
      ++it;
      continue;
    }
    if (it + 1 == arguments.end()) throw SpecError(fmt::format("{} needs a value", option));
    values.push_back(*(it + 1));
    it = arguments.erase(it, it + 2);
  }
  return values;
}

// Removes the options from the arguments. Returns what they select.
Selection take_selection(std::vector<std::string>& arguments) {
  Selection selection;
  for (const std::string& name : take(arguments, "--row")) selection.rows.insert(row_named(name));
  const std::vector<int> all = supported_head_dims();
  for (const std::string& number : take(arguments, "--head-dim")) {
    const auto found =
        std::ranges::find(all, number, [](int head_dim) { return fmt::to_string(head_dim); });
    if (found == all.end())
      throw SpecError(fmt::format("--head-dim {}; allowed are {}", number, fmt::join(all, ", ")));
    selection.head_dims.insert(*found);
  }
  if (selection.rows.empty())
    for (std::size_t row = 0; row < table_rows().size(); ++row) selection.rows.insert(row);
  if (selection.head_dims.empty()) selection.head_dims.insert(all.begin(), all.end());
  return selection;
}

std::vector<Arch> archs_of(const std::vector<std::string>& names) {
  if (names.empty()) return gpu_archs();
  std::vector<Arch> result;
  for (const std::string& name : names) {
    result.push_back(find_arch(name));
    if (result.back().isa != "ptx")
      throw SpecError(name + " is no GPU: NVRTC does not compile for it");
  }
  return result;
}

}  // namespace
}  // namespace lazyrope

int main(int count, char** arguments) {
  try {
    std::ptrdiff_t problems = 0;
    std::vector<std::string> archs(arguments + 1, arguments + count);
    const lazyrope::Selection selection = lazyrope::take_selection(archs);
    for (const lazyrope::Arch& arch : lazyrope::archs_of(archs))
      problems += lazyrope::compile_arch(arch, selection);
    fmt::print("kernels that spill or give warnings: {}\n", problems);
    return problems == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
