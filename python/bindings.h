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
void bind_emulator(pybind11::module_& module);

// That of the present GPU where no name is given.
const Arch& arch_of(const std::optional<std::string>& name);

// A number that stands for an object; lazyrope/_handles.py finds the object by it.
template <class Type>
void define_handle(Type& type) {
  type.def_property_readonly("handle", [](const pybind11::object& self) {
    return pybind11::module_::import("lazyrope._handles").attr("handle_of")(self);
  });
}

pybind11::bytes cubin_of(const Kernel& kernel);

}  // namespace lazyrope
