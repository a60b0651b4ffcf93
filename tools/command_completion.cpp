#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tools/command.h"
#include "tools/completion.h"
#include "tools/output.h"

namespace lazyrope {
namespace {

constexpr const char* kCompletionFooter =
    R"(The command prints a script for SHELL: bash, zsh or fish. After the shell has read it, the tab key
completes subcommands, options, file names and values such as archs.
To load it in every shell, put one of these lines into the shell's start file, which is ~/.bashrc,
~/.zshrc (after compinit) or ~/.config/fish/config.fish:

  source <(lazyrope completion bash)
  source <(lazyrope completion zsh)
  lazyrope completion fish | source

Exit codes: 0 done, 1 failed, 2 wrong usage.

Example:
  source <(lazyrope completion bash))";

int run_completion(CLI::App& root, const std::string& shell) {
  const std::vector<std::string> shells = completion_shells();
  if (shell.empty()) throw UsageError("SHELL is missing: give bash, zsh or fish");
  if (std::ranges::find(shells, shell) == shells.end()) refuse_value("SHELL", shell, shells);
  print(completion_script(root, shell));
  return 0;
}

}  // namespace

Command completion_command(CLI::App& root) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* const app =
      root.add_subcommand("completion", "Print a script with which a shell completes commands");
  app->footer(kCompletionFooter);
  offer_values(app->add_option("SHELL", *shell, "bash, zsh or fish"), completion_shells());
  return {app, [&root, shell] { return run_completion(root, *shell); }};
}

}  // namespace lazyrope
