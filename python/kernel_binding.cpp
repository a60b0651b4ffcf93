#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/bindings.h"
#include "runtime/kernel.h"

namespace lazyrope {

namespace py = pybind11;

void bind_kernels(py::module_& module) {
  py::class_<Kernel, std::shared_ptr<Kernel>>(module, "CompiledKernel")
      .def_property_readonly("name", &Kernel::name)
      .def_property_readonly("arch", [](const Kernel& k) { return k.arch().name; })
      .def_property_readonly("entry", [](const Kernel& k) { return k.binary().entry; })
      .def_property_readonly("source", &Kernel::source)
      .def("ptx", &Kernel::intermediate, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("cubin",
                             [](const Kernel& k) {
                               const std::vector<std::byte>& code = k.binary().code;
                               return py::bytes(reinterpret_cast<const char*>(code.data()), code.size());
                             })
      .def_property_readonly("registers", [](const Kernel& k) { return k.binary().registers; })
      .def_property_readonly("spill_bytes", [](const Kernel& k) { return k.binary().spill_bytes; })
      .def_property_readonly("shared_bytes", [](const Kernel& k) { return k.binary().shared_bytes; })
      .def_property_readonly("threads", [](const Kernel& k) { return k.binary().threads; })
      .def_property_readonly("compiler", [](const Kernel& k) { return k.binary().compiler; })
      .def_property_readonly("compile_ms", [](const Kernel& k) { return k.binary().compile_ms; })
      .def_property_readonly("from_cache", &Kernel::from_cache)
      .def("__repr__", [](const Kernel& k) {
        const Binary& b = k.binary();
        return fmt::format(
            "CompiledKernel('{}', arch='{}', registers={}, spill_bytes={}, shared_bytes={}, compile_ms={:.0f}, "
            "from_cache={})",
            k.name(), b.arch, b.registers, b.spill_bytes, b.shared_bytes, b.compile_ms,
            k.from_cache() ? "True" : "False");
      });
}

}  // namespace lazyrope
