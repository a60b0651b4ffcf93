#pragma once

#include <string>
#include <vector>

namespace lazyrope {

// Where NVIDIA's PyPI packages lie if this process's executable stands in the bin directory of a
// Python environment (lib/python3.*/site-packages/nvidia/*/lib beside it): for the command, which
// asks no Python.
std::vector<std::string> nvrtc_directories_beside_executable();

}  // namespace lazyrope
