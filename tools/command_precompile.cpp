#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/table.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/kernel_set.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/kernel_options.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace lazyrope {
namespace {

constexpr const char* kPrecompileFooter =
    R"(Name the models with --model, the GPUs with --arch and the directory with --out. The
command compiles every kernel that the models need into DIR; it needs no GPU. Programs that use
DIR need neither a compiler nor NVRTC; set for them:

  LAZYROPE_CACHE_DIR=DIR LAZYROPE_POLICY=cache_only

For those programs DIR may be read-only, as in a container image. Its files must belong to root or
to the program's user. Kernels that are in DIR are not compiled again: repeat an interrupted
command to continue it, and add models later. Nothing is removed; `lazyrope cache prune` removes
the least recently used kernels.
Give the options of the attention that the programs use: lazyrope.transformers.attach needs
--query-form rotated --reposition. A model whose layers differ gets the kernels of all its layers.
--check compiles nothing, leaves DIR as it is and reports the kernels that it lacks.

The table has one row per model and arch. A second table has one row per missing kernel, with the
reason. A kernel that fails does not keep the others out of DIR.
--json prints an object: directory, seconds, entries and bytes (of DIR), kernels [{model, spec,
config, arch, kernel, key, state, problem}]; state is found, compiled or missing.
Exit codes: 0 if DIR has every kernel, 1 if one is missing, 2 wrong usage.

Example:
  lazyrope precompile --model Llama-3.1-8B Qwen3-8B --arch sm_80,sm_90a --out /opt/kernels)";

struct PrecompileOptions {
  KernelOptions kernels;
  std::string out;
  bool check = false;
  bool json = false;
};

using Requests = std::vector<KernelSetRequest>;
using Sets = std::vector<KernelSet>;
using Failures = std::map<std::string, std::string>;  // by key

struct Outcome {
  Sets before;  // the directory's kernels when the command began
  Sets now;     // its kernels now
  Failures failures;
};

enum class State { kFound, kCompiled, kMissing };

// A kernel that a model needs on an arch, and whether the directory has it.
struct PrecompileRow {
  const KernelSetRequest* set;
  KernelConfig config;
  KernelKind kind;
  const KernelResult* now;
  State state;
  std::string problem;  // why it is missing
};

using PrecompileRows = std::vector<PrecompileRow>;

const char* to_string(State state) {
  switch (state) {
    case State::kFound:
      return "found";
    case State::kCompiled:
      return "compiled";
    case State::kMissing:
      return "missing";
  }
  return "?";
}

Config config_of(const PrecompileOptions& options) {
  Config config = config_with_out(options.out);
  config.cache_max_bytes = std::numeric_limits<std::uint64_t>::max();
  config.cache_layers.clear();  // the directory must have every kernel itself
  config.policy = CachePolicy::kJit;
  return config;
}

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

bool is_complete(const KernelSet& set) {
  return std::ranges::all_of(set.results, &KernelResult::is_usable);
}

Sets find(Engine& engine, const Requests& requests, const PrecompileOptions& options) {
  EngineOptions engine_options = engine_options_of(options.kernels);
  engine_options.cache_only = true;
  return compile_sets(engine, requests, engine_options);
}

// Throws before any work begins if an arch that lacks kernels cannot be compiled for at all.
void check_can_compile(const Engine& engine, const Requests& requests, const Sets& found) {
  std::set<const Arch*> archs;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (!is_complete(found[i])) archs.insert(requests[i].arch);
  for (const Arch* arch : archs) engine.check_can_compile(*arch);
}

Failures compile(Engine& engine, const Requests& requests, const PrecompileOptions& options) {
  Progress progress;
  Failures failures;
  for (const KernelSet& set :
       compile_sets(engine, requests, engine_options_of(options.kernels, &progress)))
    for (const KernelResult& result : set.results)
      if (!result.is_usable()) failures.emplace(result.key, message_of(result.failure));
  return failures;
}

// The directory is read again after compiling, because a kernel counts only if it can be read back.
Outcome precompile(Engine& engine, const Requests& requests, const PrecompileOptions& options) {
  Sets found = find(engine, requests, options);
  if (options.check || std::ranges::all_of(found, is_complete)) return {found, found, {}};
  check_can_compile(engine, requests, found);
  Failures failures = compile(engine, requests, options);
  engine.clear_cache();
  return {std::move(found), find(engine, requests, options), std::move(failures)};
}

std::string problem_of(const KernelResult& result, const Failures& failures) {
  const auto failure = failures.find(result.key);
  return failure == failures.end() ? message_of(result.failure) : failure->second;
}

State state_of(const KernelResult& before, const KernelResult& now) {
  if (!now.is_usable()) return State::kMissing;
  return before.is_usable() ? State::kFound : State::kCompiled;
}

PrecompileRows rows_of(const Requests& requests, const Outcome& outcome) {
  PrecompileRows rows;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const KernelSet& set = outcome.now[i];
    for (std::size_t k = 0; k < set.results.size(); ++k) {
      const KernelResult& now = set.results[k];
      rows.push_back({&requests[i], set.config, requests[i].kinds[k], &now,
                      state_of(outcome.before[i].results[k], now),
                      now.is_usable() ? "" : problem_of(now, outcome.failures)});
    }
  }
  return rows;
}

std::size_t count(const PrecompileRows& rows, State state) {
  return static_cast<std::size_t>(std::ranges::count(rows, state, &PrecompileRow::state));
}

// Returns the first row of each kernel, because models may share kernels.
PrecompileRows distinct(const PrecompileRows& rows) {
  PrecompileRows result;
  std::set<std::string> seen;
  for (const PrecompileRow& row : rows)
    if (seen.insert(row.now->key).second) result.push_back(row);
  return result;
}

std::size_t code_bytes(const PrecompileRows& rows) {
  std::size_t bytes = 0;
  for (const PrecompileRow& row : rows)
    if (row.now->is_usable()) bytes += row.now->kernel->binary().code.size();
  return bytes;
}

// Returns a table with one line for each model and arch.
std::string table_of(const PrecompileRows& rows) {
  Table table({{"model"},
               {"arch"},
               {"kernels", Align::kRight},
               {"compiled", Align::kRight},
               {"missing", Align::kRight},
               {"size", Align::kRight}});
  for (auto begin = rows.begin(); begin != rows.end();) {
    const KernelSetRequest& set = *begin->set;
    const auto end = std::find_if(begin, rows.end(), [&](const PrecompileRow& row) {
      return row.set->name != set.name || row.set->arch != set.arch;
    });
    const PrecompileRows group(begin, end);
    table.add({set.name, set.arch->name, fmt::to_string(group.size()),
               fmt::to_string(count(group, State::kCompiled)),
               fmt::to_string(count(group, State::kMissing)), size_text(code_bytes(group))});
    begin = end;
  }
  return table.text();
}

// Returns the empty string if no kernel is missing.
std::string missing_text(const PrecompileRows& rows) {
  if (count(rows, State::kMissing) == 0) return "";
  Table table({{"model"}, {"arch"}, {"kernel"}, {"missing because"}});
  for (const PrecompileRow& row : rows)
    if (row.state == State::kMissing)
      table.add({row.set->name, row.set->arch->name, std::string(to_string(row.kind)),
                 row.problem.substr(0, row.problem.find('\n'))});
  return table.text() + "\n";
}

std::string text_of(const DiskStore& store, const PrecompileRows& rows, double seconds) {
  const PrecompileRows kernels = distinct(rows);
  return fmt::format(
      "{}\n{}{} kernels in {:.2f} s: {} found, {} compiled, {} missing\n{}: {} kernels, {}\n",
      table_of(rows), missing_text(rows), kernels.size(), seconds, count(kernels, State::kFound),
      count(kernels, State::kCompiled), count(kernels, State::kMissing), store.root().string(),
      store.count(), size_text(store.size_bytes()));
}

OrderedJson json_of(const PrecompileRow& row) {
  return {{"model", row.set->name},
          {"spec", describe(row.set->spec)},
          {"config", describe(row.config)},
          {"arch", row.set->arch->name},
          {"kernel", to_string(row.kind)},
          {"key", row.now->key},
          {"state", to_string(row.state)},
          {"problem", row.problem.empty() ? OrderedJson(nullptr) : OrderedJson(row.problem)}};
}

OrderedJson json_of(const DiskStore& store, const PrecompileRows& rows, double seconds) {
  OrderedJson kernels = OrderedJson::array();
  for (const PrecompileRow& row : rows) kernels.push_back(json_of(row));
  return {{"directory", store.root().string()},
          {"seconds", seconds},
          {"entries", store.count()},
          {"bytes", store.size_bytes()},
          {"kernels", kernels}};
}

// Prints the full messages of the compiler and the number of missing kernels. Returns the exit
// code.
int report_missing(const PrecompileRows& rows, const Failures& failures) {
  const PrecompileRows kernels = distinct(rows);
  const std::size_t missing = count(kernels, State::kMissing);
  if (missing == 0) return 0;
  for (const auto& [key, message] : failures) fmt::print(stderr, "lazyrope: {}\n", message);
  fmt::print(stderr, "lazyrope: {} of {} kernels are missing\n", missing, kernels.size());
  return 1;
}

int run_precompile(const PrecompileOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  Engine engine(config_of(options));
  const Requests requests = kernel_sets_of(options.kernels);
  const Outcome outcome = precompile(engine, requests, options);
  const PrecompileRows rows = rows_of(requests, outcome);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  print(options.json ? json_text(json_of(engine.store(), rows, elapsed.count()))
                     : text_of(engine.store(), rows, elapsed.count()));
  return report_missing(rows, outcome.failures);
}

}  // namespace

Command precompile_command(CLI::App& root) {
  const auto options = std::make_shared<PrecompileOptions>();
  CLI::App* const app = root.add_subcommand(
      "precompile", "Fill a directory with all kernels that a deployment needs");
  app->footer(kPrecompileFooter);
  app->add_option("--out", options->out, "Directory for the kernels")->option_text("DIR");
  app->add_flag("--check", options->check, "Compile nothing; report what DIR lacks");
  add_json_option(*app, options->json);
  add_kernel_options(*app, options->kernels);
  return {app, [options] { return run_precompile(*options); }};
}

}  // namespace lazyrope
