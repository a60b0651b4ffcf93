#pragma once

#include <string>
#include <vector>

namespace lazyrope {

// Returns the lib directories of NVIDIA's PyPI packages if this process's executable is in the bin
// directory of a Python environment (lib/python3.*/site-packages/nvidia/*/lib beside it). The
// lazyrope command uses it, because it runs without Python.
std::vector<std::string> nvrtc_directories_beside_executable();

}  // namespace lazyrope
