#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "python/bindings.h"
#include "python/errors.h"
#include "python/log_bridge.h"
#include "runtime/base/config.h"
#include "runtime/base/interruption.h"
#include "runtime/base/trace.h"
#include "runtime/base/version.h"
#include "runtime/doctor.h"
#include "runtime/engine/devices.h"
#include "runtime/engine/engine.h"

namespace py = pybind11;

// pybind11 defines its entry point under this name, for the one below to call. A module that is
// loaded in a second interpreter would wait for ever for the lock of the first one.
#define PyInit__core init_core_in_main_interpreter

PYBIND11_MODULE(_core, module) {
  module.doc() = "The compiled part of lazyrope; use the lazyrope package.";
  module.attr("__version__") = lazyrope::version();
  lazyrope::translate_errors();
  lazyrope::bridge_log();
  lazyrope::set_interruption_check([] {
    // A thread that waits for another one's kernel in the emulator may hold the interpreter's lock.
    if (PyGILState_Check() != 0) const py::gil_scoped_release others_run;
    const py::gil_scoped_acquire locked;
    if (lazyrope::log_is_waiting()) lazyrope::deliver_log();
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  });
  lazyrope::bind_specs(module);
  lazyrope::bind_kernels(module);
  lazyrope::bind_steps(module);
  lazyrope::bind_batch(module);
  lazyrope::bind_attention(module);
  lazyrope::bind_reposition(module);
  lazyrope::bind_emulator(module);
  module.def("archs", &lazyrope::compilable_archs);
  module.def("set_nvrtc_directories", &lazyrope::set_nvrtc_directories, py::arg("directories"));
  module.def("environment_variables", [] {
    py::list rows;
    for (const lazyrope::ConfigVariable& variable : lazyrope::config_variables()) {
      py::dict row;
      row["name"] = variable.name;
      row["meaning"] = variable.meaning;
      row["allowed"] = variable.allowed;
      row["default"] = variable.default_value;
      row["value"] = variable.value;
      rows.append(row);
    }
    return rows;
  });
  module.def(
      "clear_cache", [] { lazyrope::Engine::get().clear_cache(); },
      py::call_guard<lazyrope::LogDelivery>());
  module.def("counters", [] {
    py::dict values;
    for (const lazyrope::CounterValue& value : lazyrope::Engine::get().counters().values())
      values[py::str(value.name)] = value.value;
    return values;
  });
  module.def("is_tracing", &lazyrope::is_tracing);
  module.def(
      "write_trace_event",
      [](const std::string& name, double begin, double end, const std::string& arguments) {
        const auto time = [](double seconds) {
          return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
        };
        lazyrope::write_trace_event(name, time(begin), time(end), nlohmann::json::parse(arguments));
      },
      py::arg("name"), py::arg("begin"), py::arg("end"), py::arg("arguments"),
      py::call_guard<lazyrope::LogDelivery>());
  module.def("open_metrics", [] { return lazyrope::Engine::get().counters().open_metrics(); });
  module.def(
      "doctor", [] { return lazyrope::doctor().text(); }, py::call_guard<lazyrope::LogDelivery>());
  lazyrope::add_stub_texts(module);
}

#undef PyInit__core

// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): Python looks for it.
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return init_core_in_main_interpreter();
  PyErr_SetString(PyExc_ImportError,
                  "lazyrope works in the main interpreter only; import it there, or in another "
                  "process");
  return nullptr;
}
