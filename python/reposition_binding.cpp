#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/bindings.h"
#include "python/dlpack_tensor.h"
#include "python/log_bridge.h"
#include "python/steps.h"
#include "runtime/attention/reposition.h"

namespace lazyrope {
namespace {

namespace py = pybind11;

std::shared_ptr<Reposition> compile_here(const AttentionSpec& spec,
                                         const std::optional<std::string>& arch) {
  const py::gil_scoped_release unlocked;
  return std::const_pointer_cast<Reposition>(
      Reposition::compile(Engine::get(), spec, arch_of(arch)));
}

void move(const Reposition& self, const py::object& k_pool, const py::object& v_pool,
          const PyAppendStep& source, const PyAppendStep& target, bool check,
          const std::optional<std::uintptr_t>& stream) {
  const DlpackTensor keys("k_pool", k_pool, Access::kWrite);
  const DlpackTensor values("v_pool", v_pool, Access::kWrite);
  const Stream used_stream = stream_of(stream, keys);
  if (check && keys.view().rank == kPoolRank) {
    const py::gil_scoped_release unlocked;  // the check waits for the stream
    check_moves(*source.step, *target.step, keys.view().shape[0], used_stream);
  }
  self.move({keys.view(), values.view()}, *source.step, *target.step, used_stream);
}

}  // namespace

void bind_reposition(py::module_& module) {
  py::class_<Reposition, std::shared_ptr<Reposition>> type(module, "Reposition");
  define_copy(type, [](const Reposition& r) {
    return py::make_tuple(py::module_::import("lazyrope").attr("_repositioned"),
                          py::make_tuple(r.spec(), r.arch().name));
  });
  type.def("__call__", &move, py::arg("k_pool"), py::arg("v_pool"), py::arg("source"),
           py::arg("target"), py::kw_only(), py::arg("check") = false,
           py::arg("stream") = py::none(), py::call_guard<LogDelivery>())
      .def_property_readonly("spec", &Reposition::spec)
      .def_property_readonly("arch", [](const Reposition& r) { return r.arch().name; })
      .def_property_readonly(
          "kernel", [](const Reposition& r) { return std::const_pointer_cast<Kernel>(r.kernel()); })
      .def("__repr__", [](const Reposition& r) {
        return fmt::format("Reposition({}, arch='{}')",
                           py::cast<std::string>(py::repr(py::cast(r.spec()))), r.arch().name);
      });
  module.def("compile_reposition", &compile_here, py::arg("spec"), py::arg("arch") = py::none(),
             py::call_guard<LogDelivery>());
}

}  // namespace lazyrope
