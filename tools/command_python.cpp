#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "tools/command.h"
#include "tools/environment.h"

namespace lazyrope {
namespace {

// Replaces this process by `python -m MODULE ARGUMENTS`.
[[noreturn]] void run_python(const std::string& python, const std::string& module,
                             const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {python, "-m", module};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(python.c_str(), argv.data());
  throw std::runtime_error(
      fmt::format("cannot run {}: {}", python, std::generic_category().message(errno)));
}

int run_module(const std::string& module, const std::vector<std::string>& arguments) {
  const auto prefix = install_prefix();
  std::error_code failed;
  if (!prefix || !std::filesystem::exists(*prefix / "bin" / "python3", failed))
    throw std::runtime_error(
        fmt::format("this command is not in a Python environment, and {0} is part of lazyrope's "
                    "Python package: run `PYTHON -m {0}` with a Python that has the package",
                    module));
  run_python((*prefix / "bin" / "python3").string(), module, arguments);
}

// Makes a subcommand that a module of the Python package executes. The module parses its options.
Command python_command(CLI::App& root, const std::string& name, const std::string& purpose) {
  const std::string module = "lazyrope." + name;
  CLI::App* const app =
      root.add_subcommand(name, fmt::format("{} (runs python3 -m {})", purpose, module));
  app->set_help_flag();
  app->prefix_command();
  return {app, [app, module] { return run_module(module, app->remaining()); }};
}

}  // namespace

Command bench_command(CLI::App& root) {
  return python_command(root, "bench", "Time the kernels beside PyTorch's");
}

Command assess_command(CLI::App& root) {
  return python_command(root, "assess", "Compare the levels of recovery on questions");
}

}  // namespace lazyrope
