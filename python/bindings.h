#pragma once

#include <pybind11/pybind11.h>

namespace lazyrope {

class Kernel;

// Each defines one part of the extension module.
void bind_specs(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_steps(pybind11::module_& module);
void bind_attention(pybind11::module_& module);

pybind11::bytes cubin_of(const Kernel& kernel);

}  // namespace lazyrope
