#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lazyrope {

// Returns the entries of a directory, sorted. A directory that cannot be read has none.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& directory);

// Returns the directory below whose bin/ this command is installed, such as a Python environment.
// Returns nothing if the system does not tell.
std::optional<std::filesystem::path> install_prefix();

// Returns the directories of installed Python packages below that prefix. Outside of a Python
// environment there are none.
std::vector<std::filesystem::path> python_package_directories();

// Returns the lib directories of NVIDIA's PyPI packages below that prefix. One of them has NVRTC if
// the package nvidia-cuda-nvrtc is installed there.
std::vector<std::string> installed_nvrtc_directories();

}  // namespace lazyrope
