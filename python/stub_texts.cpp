#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "python/bindings.h"

namespace lazyrope {

namespace py = pybind11;

namespace {

struct StubText {
  const char* name;       // "compile", "Attention.plan"
  const char* signature;  // of a function
  const char* text;
};

constexpr StubText kStubTexts[] = {
#include "python/stub_texts.inc"
};

// As CPython keeps both for what is written in C: `__doc__` and `__text_signature__`, from which
// inspect has the signature.
std::string internal_text(const StubText& of) {
  return std::string(of.signature) + "\n--\n\n" + of.text;
}

// pybind11 frees it with the function.
void describe_function(py::handle function, const StubText& of) {
  PyMethodDef* method = reinterpret_cast<PyCFunctionObject*>(function.ptr())->m_ml;
  std::free(const_cast<char*>(method->ml_doc));
  method->ml_doc = ::strdup(internal_text(of).c_str());
}

void describe(py::handle object, const StubText& of) {
  if (PyInstanceMethod_Check(object.ptr()) != 0)
    describe_function(PyInstanceMethod_GET_FUNCTION(object.ptr()), of);
  else if (PyCFunction_Check(object.ptr()) != 0)
    describe_function(object, of);
  else
    object.attr("__doc__") = of.text;  // a class or a property
}

}  // namespace

void add_stub_texts(py::module_& module) {
  for (const StubText& text : kStubTexts) {
    py::object object = module;
    for (std::string_view rest = text.name; !rest.empty();) {
      const std::size_t end = std::min(rest.find('.'), rest.size());
      const py::str name(std::string(rest.substr(0, end)));
      // A class's own, as it is kept: a method bound to nothing, a property, a static method.
      object = py::isinstance<py::type>(object) ? py::object(object.attr("__dict__")[name])
                                                : py::object(object.attr(name));
      if (Py_TYPE(object.ptr()) == &PyStaticMethod_Type) object = object.attr("__func__");
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    describe(object, text);
  }
}

}  // namespace lazyrope
