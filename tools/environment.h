#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lazyrope {

// Returns the root of the Python environment that this command is installed in: the parent of the
// command's directory, if it has bin/python3. Otherwise the path is empty.
std::filesystem::path environment_root();

// Returns the lib directories of NVIDIA's PyPI packages in that environment. One of them has NVRTC
// if the environment has the package nvidia-cuda-nvrtc.
std::vector<std::string> environment_nvrtc_directories();

}  // namespace lazyrope
