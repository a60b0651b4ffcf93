#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <vector>

namespace lazyrope {

// A subcommand. `run` does what its parsed options ask for and returns the exit code; what it
// throws ends the command with exit code 1, or 2 for a UsageError.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

// Runs the one that the command line names.
int run_parsed(const std::vector<Command>& commands);

// A mistake in the command line that only shows once all of it is known.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

Command autotune_command(CLI::App& root);
Command profile_command(CLI::App& root);
Command render_command(CLI::App& root);
Command compile_command(CLI::App& root);
Command precompile_command(CLI::App& root);
Command cache_command(CLI::App& root);
Command doctor_command(CLI::App& root);
Command bench_command(CLI::App& root);

}  // namespace lazyrope
