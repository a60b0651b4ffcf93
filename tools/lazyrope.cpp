// This file is the main program of the lazyrope command.

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/version.h"
#include "tools/command.h"

namespace lazyrope {
namespace {

constexpr int kFailure = 1;
constexpr int kBadUsage = 2;

constexpr const char* kDescription =
    "Render, compile, tune and cache attention kernels over position-free KV.";
constexpr const char* kRootFooter =
    R"(`lazyrope SUBCOMMAND --help` explains a subcommand. `lazyrope doctor` shows the environment
variables that lazyrope reads.
Exit codes: 0 done, 1 failed, 2 wrong usage.

Example:
  lazyrope compile --model Llama-3.1-8B/config.json --arch sm_90a)";

// Returns the innermost subcommand that the command line names.
const CLI::App* last_parsed(const CLI::App* app) {
  const std::vector<CLI::App*> parsed = app->get_subcommands();
  return parsed.empty() ? app : last_parsed(parsed.front());
}

// Returns the words of the subcommand, such as "lazyrope cache prune".
std::string full_name(const CLI::App* app) {
  const CLI::App* const parent = app->get_parent();
  return parent == nullptr ? app->get_name()
                           : fmt::format("{} {}", full_name(parent), app->get_name());
}

// Returns the message for CLI::RequiredError. No option is required, so a subcommand is missing.
std::string missing_subcommand(const CLI::App& app) {
  const std::vector<std::string> unknown = last_parsed(&app)->remaining();
  return unknown.empty() ? "a subcommand is required"
                         : fmt::format("no subcommand or option is called {}", unknown.front());
}

int report_usage(const CLI::App& app, const std::string& message) {
  fmt::print(stderr, "lazyrope: {}\nsee `{} --help`\n", message, full_name(last_parsed(&app)));
  return kBadUsage;
}

int run(int argc, char** argv) {
  CLI::App app(kDescription, "lazyrope");
  app.footer(kRootFooter);
  app.get_formatter()->column_width(28);
  app.set_version_flag("--version", fmt::format("lazyrope {}", version()),
                       "Print the version and exit");
  app.require_subcommand(1);
  const std::vector<Command> commands = {
      render_command(app), compile_command(app), precompile_command(app), pack_command(app),
      unpack_command(app), keygen_command(app),  autotune_command(app),   profile_command(app),
      cache_command(app),  doctor_command(app),  bench_command(app)};
  try {
    app.parse(argc, argv);
    return run_parsed(commands);
  } catch (const CLI::RequiredError&) {
    return report_usage(app, missing_subcommand(app));
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : report_usage(app, error.what());
  } catch (const UsageError& error) {
    return report_usage(app, error.what());
  }
}

}  // namespace

int run_parsed(const std::vector<Command>& commands) {
  for (const Command& command : commands)
    if (command.app->parsed()) return command.run();
  return 0;
}

}  // namespace lazyrope

int main(int argc, char** argv) {
  // Beyond a limit on the size of files (ulimit -f), write() then returns an error, which is
  // reported, and does not end the process. Only a program may decide this; the library does not.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return lazyrope::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lazyrope: %s\n", error.what());
    return lazyrope::kFailure;
  }
}
