// This file is the main program of the lazyrope command.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "codegen/nearest_name.h"
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

// Returns the names of the subcommands and the long names of the options.
std::vector<std::string> names_in(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(subcommand->get_name());
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// Returns the message about a word that the parser did not expect.
std::string unexpected_word(const CLI::App& app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));  // --name=value
  const bool has_subcommands = !app.get_subcommands([](const CLI::App*) { return true; }).empty();
  if (!name.starts_with('-') && !has_subcommands)
    return fmt::format("the argument {} was not expected", word);
  return fmt::format("no subcommand or option is called {}{}", name,
                     did_you_mean(name, names_in(app)));
}

// Returns the message for CLI::RequiredError and CLI::ExtrasError. No option is required, so
// either a subcommand is missing or a word is not known.
std::string wrong_words(const CLI::App& app) {
  const CLI::App& last = *last_parsed(&app);
  if (const std::vector<std::string> unknown = last.remaining(); !unknown.empty())
    return unexpected_word(last, unknown.front());
  const std::vector<std::string> left = app.remaining(/*recurse=*/true);
  return left.empty() ? "a subcommand is required" : unexpected_word(last, left.front());
}

int report_usage(const CLI::App& app, const std::string& message) {
  fmt::print(stderr, "lazyrope: {}\nsee `{} --help`\n", message, full_name(last_parsed(&app)));
  return kBadUsage;
}

int run(int argc, char** argv) {
  CLI::App app(kDescription, "lazyrope");
  app.footer(kRootFooter);
  app.get_formatter()->column_width(28);
  app.set_version_flag("-V,--version", fmt::format("lazyrope {}", version()),
                       "Print the version and exit");
  app.require_subcommand(1);
  const std::vector<Command> commands = {
      render_command(app),    compile_command(app), precompile_command(app), pack_command(app),
      unpack_command(app),    keygen_command(app),  autotune_command(app),   profile_command(app),
      cache_command(app),     doctor_command(app),  bench_command(app),      assess_command(app),
      completion_command(app)};
  try {
    app.parse(argc, argv);
    return run_parsed(commands);
  } catch (const CLI::RequiredError&) {
    return report_usage(app, wrong_words(app));
  } catch (const CLI::ExtrasError&) {
    return report_usage(app, wrong_words(app));
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

void refuse_value(std::string_view option, std::string_view given,
                  const std::vector<std::string>& names) {
  throw UsageError(fmt::format("{}: \"{}\" is unknown{}; there are: {}", option, given,
                               did_you_mean(given, names), fmt::join(names, ", ")));
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
