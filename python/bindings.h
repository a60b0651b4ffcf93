#pragma once

#include <pybind11/operators.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <string>

namespace lazyrope {

class Kernel;
struct Arch;

// Each of these functions defines one part of the extension module.
void bind_specs(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_steps(pybind11::module_& module);
void bind_batch(pybind11::module_& module);
void bind_attention(pybind11::module_& module);
void bind_reposition(pybind11::module_& module);
void bind_emulator(pybind11::module_& module);

// Gives every class and function the docstring of its stub, as `__doc__`, and its signature, as
// `__text_signature__`, which inspect reads.
void add_stub_texts(pybind11::module_& module);

// Returns the arch of that name, or that of the current GPU if there is no name.
const Arch& arch_of(const std::optional<std::string>& name);

// Defines the property `handle`, a number by which lazyrope/_handles.py finds the object.
template <class Type>
void define_handle(Type& type) {
  type.def_property_readonly("handle", [](const pybind11::object& self) {
    return pybind11::module_::import("lazyrope._handles").attr("handle_of")(self);
  });
}

// Returns "Name(argument=value, ...)", which evaluates to an equal object.
std::string call_text(const pybind11::object& type, const pybind11::dict& arguments);

// Gives an immutable type the operations of a value: comparison, hash, repr, copy and pickle.
// arguments(value) returns the arguments of its constructor, by name.
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
      .def(pybind11::pickle(arguments,
                            [](const pybind11::dict& given) {
                              return pybind11::type::of<Value>()(**given).template cast<Value>();
                            }))
      // Python's own way for the pickle protocols 0 and 1 ends the process with types of pybind11.
      .def("__reduce__", [](const pybind11::object& self) {
        return pybind11::make_tuple(pybind11::module_::import("copyreg").attr("__newobj__"),
                                    pybind11::make_tuple(pybind11::type::of(self)),
                                    self.attr("__getstate__")());
      });
}

// Makes copies of an immutable object the object itself, and pickles it as reduced(object): a
// function and its arguments.
template <class Type, class Reduced>
void define_copy(Type& type, Reduced reduced) {
  type.def("__copy__", [](pybind11::object self) { return self; })
      .def("__deepcopy__",
           [](pybind11::object self, const pybind11::object& /*memo*/) { return self; })
      .def("__reduce__", reduced);
}

// Returns the kernel's binary.
pybind11::bytes cubin_of(const Kernel& kernel);

}  // namespace lazyrope
