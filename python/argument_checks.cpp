#include "python/argument_checks.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lazyrope {
namespace {

namespace py = pybind11;

// A C function that Python calls with METH_FASTCALL and METH_KEYWORDS. The values by name follow
// those by position.
using FastCall = PyObject* (*)(PyObject*, PyObject* const*, std::size_t, PyObject*);

struct CheckedParameter {
  PyObject* name = nullptr;  // interned, so that most comparisons are of pointers
  bool is_required = false;
  bool takes_any = false;
  bool is_address = false;           // an int of 64 bits
  std::vector<PyTypeObject*> types;  // a value of one needs no further check
};

struct Overload {
  std::vector<CheckedParameter> parameters;
  std::size_t by_position = 0;  // the number of parameters that may be given by position
};

struct CheckedFunction {
  FastCall dispatch = nullptr;
  std::string name;
  bool has_self = false;
  py::tuple signatures;
  std::vector<Overload> overloads;
};

// The arguments of one call, without self.
struct Arguments {
  PyObject* const* values;
  std::size_t by_position;
  PyObject* names;  // a tuple, or null

  std::size_t by_name() const {
    return names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(names));
  }
};

// Calls visit(part) for each part of the text between separators.
template <class Visit>
void for_each_part(std::string_view text, char separator, const Visit& visit) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

PyTypeObject* type_named(const std::string& name, const py::module_& scope) {
  if (name == "int" || name == "address") return &PyLong_Type;
  if (name == "bool") return &PyBool_Type;
  if (name == "str") return &PyUnicode_Type;
  if (name == "float") return &PyFloat_Type;
  if (name == "None") return Py_TYPE(Py_None);
  if (!py::hasattr(scope, name.c_str())) return nullptr;
  return reinterpret_cast<PyTypeObject*>(py::object(scope.attr(name.c_str())).ptr());
}

CheckedParameter parameter_of(std::string_view rule, const py::module_& scope) {
  const std::size_t end = rule.find('=');
  CheckedParameter parameter;
  parameter.is_required = rule[end - 1] == '!';
  const std::string name(rule.substr(0, end - (parameter.is_required ? 1 : 0)));
  parameter.name = PyUnicode_InternFromString(name.c_str());
  for_each_part(rule.substr(end + 1), '|', [&](std::string_view type) {
    parameter.is_address = parameter.is_address || type == "address";
    PyTypeObject* found = type_named(std::string(type), scope);
    parameter.takes_any = parameter.takes_any || found == nullptr;
    parameter.types.push_back(found);
  });
  return parameter;
}

Overload overload_of(const StubOverload& stub, const py::module_& scope) {
  Overload overload;
  bool by_position = true;
  for_each_part(stub.rules, ' ', [&](std::string_view rule) {
    if (rule == "/") {
      by_position = false;
      return;
    }
    overload.parameters.push_back(parameter_of(rule, scope));
    if (by_position) ++overload.by_position;
  });
  return overload;
}

// Returns true if the int certainly is in the parameter's range.
bool is_in_range(const CheckedParameter& parameter, PyObject* number) {
  int overflows = 0;
  const long value = PyLong_AsLongAndOverflow(number, &overflows);
  if (overflows != 0) return false;
  if (parameter.is_address) return value >= 0;
  return value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max();
}

// Returns true if the value certainly is of the parameter's type.
bool accepts(const CheckedParameter& parameter, PyObject* value) {
  if (parameter.takes_any) return true;
  for (const PyTypeObject* type : parameter.types) {
    if (Py_TYPE(value) != type) continue;
    return type != &PyLong_Type || is_in_range(parameter, value);
  }
  return false;
}

const CheckedParameter* parameter_named(const Overload& overload, std::size_t begin,
                                        PyObject* name) {
  const auto& all = overload.parameters;
  for (std::size_t i = begin; i < all.size(); ++i)
    if (all[i].name == name) return &all[i];
  for (std::size_t i = begin; i < all.size(); ++i)
    if (PyUnicode_Compare(all[i].name, name) == 0) return &all[i];
  return nullptr;
}

// Returns true if pybind11 certainly finds that the overload takes the arguments.
bool takes(const Overload& overload, const Arguments& given) {
  if (given.by_position > overload.by_position) return false;
  for (std::size_t i = 0; i < given.by_position; ++i)
    if (!accepts(overload.parameters[i], given.values[i])) return false;
  std::size_t required = 0;
  for (std::size_t i = given.by_position; i < overload.parameters.size(); ++i)
    if (overload.parameters[i].is_required) ++required;
  for (std::size_t i = 0; i < given.by_name(); ++i) {
    PyObject* name = PyTuple_GET_ITEM(given.names, static_cast<Py_ssize_t>(i));
    const CheckedParameter* parameter = parameter_named(overload, given.by_position, name);
    if (parameter == nullptr || !accepts(*parameter, given.values[given.by_position + i]))
      return false;
    if (parameter->is_required) --required;
  }
  return required == 0;
}

bool is_certain(const CheckedFunction& function, const Arguments& given) {
  for (const Overload& overload : function.overloads)
    if (takes(overload, given)) return true;
  return false;
}

// Calls a function of lazyrope/_checks.py, which raises the error of these arguments. Returns false
// with that error set, or true if there is none.
bool ask(const char* judge, const CheckedFunction& function, const Arguments& given) {
  try {
    py::tuple by_position(given.by_position);
    for (std::size_t i = 0; i < given.by_position; ++i)
      by_position[i] = py::reinterpret_borrow<py::object>(given.values[i]);
    py::dict by_name;
    for (std::size_t i = 0; i < given.by_name(); ++i)
      by_name[PyTuple_GET_ITEM(given.names, static_cast<Py_ssize_t>(i))] =
          py::reinterpret_borrow<py::object>(given.values[given.by_position + i]);
    py::module_::import("lazyrope._checks")
        .attr(judge)(function.name, function.signatures, by_position, by_name);
    return true;
  } catch (py::error_already_set& error) {
    error.restore();
    return false;
  }
}

// Returns true if the Python error that is set is pybind11's, that no overload takes the arguments.
bool is_refusal_by_pybind11() {
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) return false;
  const py::error_scope saved;
  return py::cast<std::string>(py::str(saved.value)).find("): incompatible ") != std::string::npos;
}

// The functions by the object that pybind11's dispatcher gets as its first argument. They live as
// long as the process, as the functions of an extension module do.
std::unordered_map<PyObject*, CheckedFunction>& checked_functions() {
  static auto& functions = *new std::unordered_map<PyObject*, CheckedFunction>();
  return functions;
}

PyObject* checked_call(PyObject* record, PyObject* const* values, std::size_t count,
                       PyObject* names) {
  const CheckedFunction& function = checked_functions().find(record)->second;
  const std::size_t self = function.has_self && count > 0 ? 1 : 0;
  const Arguments given = {values + self, count - self, names};
  if (!is_certain(function, given) && !ask("refuse", function, given)) return nullptr;
  PyObject* result = function.dispatch(record, values, count, names);
  if (result == nullptr && is_refusal_by_pybind11()) {
    PyErr_Clear();
    ask("refuse_rest", function, given);
  }
  return result;
}

}  // namespace

void check_arguments(py::handle function, const char* name, bool has_self,
                     std::span<const StubOverload> overloads, const py::module_& scope) {
  auto* object = reinterpret_cast<PyCFunctionObject*>(function.ptr());
  CheckedFunction checked;
  checked.name = name;
  if (checked.name.ends_with(".__init__")) checked.name.resize(checked.name.rfind('.'));
  checked.has_self = has_self;
  py::list signatures;
  for (const StubOverload& overload : overloads) {
    if (overload.rules == nullptr) break;
    signatures.append(overload.parameters);
    checked.overloads.push_back(overload_of(overload, scope));
  }
  checked.signatures = py::tuple(signatures);
  PyMethodDef* method = object->m_ml;
  checked.dispatch = reinterpret_cast<FastCall>(reinterpret_cast<void (*)()>(method->ml_meth));
  checked_functions().emplace(object->m_self, std::move(checked));
  method->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&checked_call));
}

}  // namespace lazyrope
