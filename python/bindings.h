#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>

namespace lazyrope {

class Kernel;
struct Arch;

// Each defines one part of the extension module.
void bind_specs(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_steps(pybind11::module_& module);
void bind_attention(pybind11::module_& module);
void bind_reposition(pybind11::module_& module);

// That of the present GPU where no name is given.
const Arch& arch_of(const std::optional<std::string>& name);

pybind11::bytes cubin_of(const Kernel& kernel);

}  // namespace lazyrope
