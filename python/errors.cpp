#include "python/errors.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <utility>

#include "cache/error.h"
#include "codegen/error.h"
#include "runtime/base/error.h"
#include "runtime/emulator/fault.h"

namespace lazyrope {
namespace {

namespace py = pybind11;

void raise(const char* name, const char* message, const py::kwargs& fields) {
  const py::object type = py::module_::import("lazyrope.errors").attr(name);
  const py::object error = type(message, **fields);
  PyErr_SetObject(type.ptr(), error.ptr());
}

void raise(const CompileError& error) {
  const CompileFailure& f = error.failure();
  py::dict fields;
  fields["source"] = f.source;
  fields["options"] = f.options;
  fields["log"] = f.log;
  fields["excerpt"] = f.excerpt;
  fields["advice"] = f.advice;
  raise("CompileError", error.what(), py::kwargs(fields));
}

py::dict fields_of(const DriverError& error) {
  const DriverFailure& f = error.failure();
  py::dict fields;
  fields["call"] = f.call;
  fields["code"] = f.code;
  fields["name"] = f.name;
  fields["advice"] = f.advice;
  return fields;
}

void raise(const DriverError& error) {
  raise("DriverError", error.what(), py::kwargs(fields_of(error)));
}

void raise(const KernelFault& error) {
  py::dict fields = fields_of(error);
  fields["rule"] = error.rule();
  raise("KernelFault", error.what(), py::kwargs(fields));
}

}  // namespace

void translate_errors() {
  py::register_exception_translator([](std::exception_ptr pointer) {
    if (!pointer) return;
    // Ctrl-C makes a compilation or a launch fail. Python then sees KeyboardInterrupt instead.
    if (PyErr_CheckSignals() != 0) return;
    try {
      std::rethrow_exception(std::move(pointer));
    } catch (const SpecError& error) {
      raise("SpecError", error.what(), py::kwargs());
    } catch (const CompileError& error) {
      raise(error);
    } catch (const KernelFault& error) {
      raise(error);
    } catch (const DriverError& error) {
      raise(error);
    } catch (const CacheError& error) {
      raise("CacheError", error.what(), py::kwargs());
    }
  });
}

}  // namespace lazyrope
