#pragma once

#include <pybind11/operators.h>
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
void bind_batch(pybind11::module_& module);
void bind_attention(pybind11::module_& module);
void bind_reposition(pybind11::module_& module);
void bind_emulator(pybind11::module_& module);

// Gives all of them what the stubs say, as `__doc__` and, for inspect, `__text_signature__`.
void add_stub_texts(pybind11::module_& module);

// That of the present GPU where no name is given.
const Arch& arch_of(const std::optional<std::string>& name);

// A number that stands for an object; lazyrope/_handles.py finds the object by it.
template <class Type>
void define_handle(Type& type) {
  type.def_property_readonly("handle", [](const pybind11::object& self) {
    return pybind11::module_::import("lazyrope._handles").attr("handle_of")(self);
  });
}

// "Name(argument=value, ...)", which evaluates to an equal object.
std::string call_text(const pybind11::object& type, const pybind11::dict& arguments);

// Makes an immutable type one of values: compared, hashed, shown, copied and pickled by what its
// constructor takes, as arguments(value) gives it, by name.
template <class Type, class Arguments>
void define_value(Type& type, Arguments arguments) {
  using Value = Type::type;
  type.def(pybind11::self == pybind11::self)
      .def("__hash__",
           [=](const Value& value) { return pybind11::hash(pybind11::str(arguments(value))); })
      .def("__repr__",
           [=](const Value& value) {
             return call_text(pybind11::type::of<Value>(), arguments(value));
           })
      .def(pybind11::pickle(arguments, [](const pybind11::dict& given) {
        return pybind11::type::of<Value>()(**given).template cast<Value>();
      }));
}

pybind11::bytes cubin_of(const Kernel& kernel);

}  // namespace lazyrope
