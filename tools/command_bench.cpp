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

// Replaces this process by `python -m lazyrope.bench ARGUMENTS`.
[[noreturn]] void run_python(const std::string& python, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {python, "-m", "lazyrope.bench"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(python.c_str(), argv.data());
  throw std::runtime_error(
      fmt::format("cannot run {}: {}", python, std::generic_category().message(errno)));
}

int run_bench(const std::vector<std::string>& arguments) {
  const auto prefix = install_prefix();
  std::error_code failed;
  if (!prefix || !std::filesystem::exists(*prefix / "bin" / "python3", failed))
    throw std::runtime_error(
        "this command is not in a Python environment, and the benchmark is part of lazyrope's "
        "Python package: run `PYTHON -m lazyrope.bench` with a Python that has the package");
  run_python((*prefix / "bin" / "python3").string(), arguments);
}

}  // namespace

Command bench_command(CLI::App& root) {
  CLI::App* const app = root.add_subcommand(
      "bench", "Time the kernels beside PyTorch's (runs python3 -m lazyrope.bench)");
  app->set_help_flag();
  app->prefix_command();
  return {app, [app] { return run_bench(app->remaining()); }};
}

}  // namespace lazyrope
