#pragma once

#include <pybind11/pybind11.h>

#include <span>

namespace lazyrope {

// One overload of a function, as its stub declares it. Neither text has self.
struct StubOverload {
  const char* parameters;  // "spec: AttentionSpec, arch: str | None=None"
  const char* rules;       // "spec!=AttentionSpec arch=str|None": ! is required, / begins keywords
};

// Makes a function that pybind11 defined check its arguments before pybind11 sees them. pybind11
// would otherwise answer with all its signatures and the elements of every tensor. The check of
// good arguments compares types only; lazyrope/_checks.py judges all others and words the error.
//
// `name` is "compile" or "Attention.plan". `scope` is the module whose classes the rules name.
void check_arguments(pybind11::handle function, const char* name, bool has_self,
                     std::span<const StubOverload> overloads, const pybind11::module_& scope);

}  // namespace lazyrope
