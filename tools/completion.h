#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

// Gives an option the values that shells offer for it. The option takes others too: the code that
// reads a value checks it.
void offer_values(CLI::Option* option, const std::vector<std::string>& values);

// Returns the names of the shells that completion_script() knows.
std::vector<std::string> completion_shells();

// Returns a script for one of these shells that completes the subcommands, the options and the
// values of the command line of `root`.
std::string completion_script(CLI::App& root, std::string_view shell);

}  // namespace lazyrope
