#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "tools/command.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

// The probe exits with 0 if the package is installed. A directory that is only named lazyrope, such
// as a checkout, has no origin.
constexpr const char* kProbe =
    "import importlib.util, sys\n"
    "spec = importlib.util.find_spec('lazyrope')\n"
    "sys.exit(spec is None or spec.origin is None)";

// Returns the Python beside the command, which is that of the environment with the command, or else
// "python3", which PATH resolves.
std::string find_python() {
  std::error_code failed;
  const fs::path directory = fs::read_symlink("/proc/self/exe", failed).parent_path();
  for (const char* name : {"python3", "python"}) {
    const fs::path python = directory / name;
    if (!failed && ::access(python.c_str(), X_OK) == 0) return python.string();
  }
  return "python3";
}

// Returns the argument vector that execv and posix_spawn take; it points into `arguments`.
std::vector<char*> argument_vector(std::vector<std::string>& arguments) {
  std::vector<char*> result;
  result.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) result.push_back(argument.data());
  result.push_back(nullptr);
  return result;
}

[[noreturn]] void cannot_run(const std::string& python, int error) {
  throw std::runtime_error(fmt::format(
      "cannot run {}, which the benchmark needs: {}\ninstall Python, and lazyrope's package with "
      "`pip install lazyrope`",
      python, std::generic_category().message(error)));
}

bool has_package(const std::string& python) {
  std::vector<std::string> arguments = {python, "-c", kProbe};
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, python.c_str(), nullptr, nullptr,
                                   argument_vector(arguments).data(), environ);
  if (error != 0) cannot_run(python, error);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int run_bench(const std::vector<std::string>& given) {
  const std::string python = find_python();
  if (!has_package(python))
    throw std::runtime_error(fmt::format(
        "{} has no package lazyrope, which contains the benchmark: run `{} -m pip install "
        "lazyrope`, or put a Python that has the package first on PATH",
        python, python));
  std::vector<std::string> arguments = {python, "-m", "lazyrope.bench"};
  arguments.insert(arguments.end(), given.begin(), given.end());
  ::execvp(python.c_str(), argument_vector(arguments).data());
  cannot_run(python, errno);
}

}  // namespace

Command bench_command(CLI::App& root) {
  CLI::App* const app = root.add_subcommand(
      "bench", "Time the kernels and PyTorch's (runs python -m lazyrope.bench)");
  app->set_help_flag();
  app->prefix_command();
  return {app, [app] { return run_bench(app->remaining()); }};
}

}  // namespace lazyrope
