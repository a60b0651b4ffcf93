// The lazyrope command: `lazyrope SUBCOMMAND --help` explains each.

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "runtime/version.h"
#include "tools/command.h"

namespace lazyrope {
namespace {

constexpr int kFailure = 1;
constexpr int kBadUsage = 2;

constexpr const char* kDescription = "Attention kernels over position-free KV: rendered, compiled, cached.";
constexpr const char* kFooter =
    "Exit codes: 0 done, 1 failed, 2 wrong usage. `lazyrope doctor` shows the environment variables\n"
    "that lazyrope reads.";

// "lazyrope cache prune", as far as the command line got.
std::string parsed_name(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? app.get_name()
                        : fmt::format("{} {}", app.get_name(), parsed_name(*parsed.front()));
}

int report(int code, const std::string& message) {
  fmt::print(stderr, "lazyrope: {}\n", message);
  return code;
}

int report_usage(const CLI::App& app, const std::string& message) {
  return report(kBadUsage, fmt::format("{}\nsee `{} --help`", message, parsed_name(app)));
}

int run(int argc, char** argv) {
  CLI::App app(kDescription, "lazyrope");
  app.footer(kFooter);
  app.get_formatter()->column_width(28);
  app.set_version_flag("--version", fmt::format("lazyrope {}", version()), "Print the version and exit");
  app.require_subcommand(1);
  const std::vector<Command> commands = {render_command(app), compile_command(app),
                                         cache_command(app), doctor_command(app),
                                         bench_command(app)};
  try {
    app.parse(argc, argv);
    for (const Command& command : commands)
      if (command.app->parsed()) return command.run();
    return 0;
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : report_usage(app, error.what());
  } catch (const UsageError& error) {
    return report_usage(app, error.what());
  }
}

}  // namespace
}  // namespace lazyrope

int main(int argc, char** argv) {
  try {
    return lazyrope::run(argc, argv);
  } catch (const std::exception& error) {
    return lazyrope::report(lazyrope::kFailure, error.what());
  }
}
