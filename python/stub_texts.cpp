#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "python/argument_checks.h"
#include "python/bindings.h"

namespace lazyrope {

namespace py = pybind11;

namespace {

struct StubText {
  const char* name;       // "compile", "Attention.plan"
  const char* signature;  // a function's signature, "name(arguments)"
  const char* text;
  StubOverload overloads[2];  // those of a function; the rest of the array is null
};

constexpr StubText kStubTexts[] = {
#include "python/stub_texts.inc"
};

// Returns the internal docstring of a C function. CPython splits it into `__text_signature__`,
// which inspect reads, and `__doc__`.
std::string internal_text(const StubText& stub) {
  return std::string(stub.signature) + "\n--\n\n" + stub.text;
}

// Replaces the function's docstring, which pybind11 frees with the function.
void describe_function(py::handle function, const StubText& stub) {
  PyMethodDef* method = reinterpret_cast<PyCFunctionObject*>(function.ptr())->m_ml;
  std::free(const_cast<char*>(method->ml_doc));
  method->ml_doc = ::strdup(internal_text(stub).c_str());
}

void describe(py::handle object, const StubText& stub, const py::module_& module) {
  const bool has_self = PyInstanceMethod_Check(object.ptr()) != 0;
  const py::handle function = has_self ? PyInstanceMethod_GET_FUNCTION(object.ptr()) : object.ptr();
  if (PyCFunction_Check(function.ptr()) == 0) {
    object.attr("__doc__") = stub.text;  // a class or a property
    return;
  }
  module.attr("_bound")[stub.name] = function.attr("__doc__");  // pybind11's signature, for tests
  describe_function(function, stub);
  check_arguments(function, stub.name, has_self, stub.overloads, module);
}

}  // namespace

void add_stub_texts(py::module_& module) {
  module.attr("_bound") = py::dict();
  for (const StubText& text : kStubTexts) {
    py::object object = module;
    for (std::string_view rest = text.name; !rest.empty();) {
      const std::size_t end = std::min(rest.find('.'), rest.size());
      const py::str name(std::string(rest.substr(0, end)));
      // The class's __dict__ holds the unbound method, the property or the static method itself.
      object = py::isinstance<py::type>(object) ? py::object(object.attr("__dict__")[name])
                                                : py::object(object.attr(name));
      if (Py_TYPE(object.ptr()) == &PyStaticMethod_Type) object = object.attr("__func__");
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    describe(object, text, module);
  }
}

}  // namespace lazyrope
