#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

// A subcommand. `run` executes it with its parsed options and returns the exit code. An exception
// ends the command with exit code 1, or 2 for a UsageError.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

// Runs the subcommand that the command line names, and returns its exit code.
int run_parsed(const std::vector<Command>& commands);

// A mistake in the command line that the parser cannot detect.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws a UsageError for a value of an option that is none of `names`.
[[noreturn]] void refuse_value(std::string_view option, std::string_view given,
                               const std::vector<std::string>& names);

Command autotune_command(CLI::App& root);
Command profile_command(CLI::App& root);
Command render_command(CLI::App& root);
Command compile_command(CLI::App& root);
Command precompile_command(CLI::App& root);
Command cache_command(CLI::App& root);
Command pack_command(CLI::App& root);
Command unpack_command(CLI::App& root);
Command keygen_command(CLI::App& root);
Command completion_command(CLI::App& root);
Command doctor_command(CLI::App& root);
Command bench_command(CLI::App& root);
Command assess_command(CLI::App& root);

}  // namespace lazyrope
