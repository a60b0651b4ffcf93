#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/bindings.h"
#include "runtime/engine/kernel.h"

namespace lazyrope {
namespace {

namespace py = pybind11;

void bind_plans(py::module_& module) {
  py::class_<AttendPlan> attend_type(module, "AttendPlan");
  attend_type
      .def(py::init([](int row_warps, int key_warps, int warp_rows, int warp_keys, int step_keys,
                       int stages, int ctas_per_sm, const std::string& family, int heads) {
             return AttendPlan{row_warps, key_warps,   warp_rows,         warp_keys, step_keys,
                               stages,    ctas_per_sm, family_of(family), heads};
           }),
           py::kw_only(), py::arg("row_warps"), py::arg("key_warps"), py::arg("warp_rows"),
           py::arg("warp_keys"), py::arg("step_keys"), py::arg("stages"), py::arg("ctas_per_sm"),
           py::arg("family") = "sm80", py::arg("heads") = 1)
      .def_readonly("row_warps", &AttendPlan::row_warps)
      .def_readonly("key_warps", &AttendPlan::key_warps)
      .def_readonly("warp_rows", &AttendPlan::warp_rows)
      .def_readonly("warp_keys", &AttendPlan::warp_keys)
      .def_readonly("step_keys", &AttendPlan::step_keys)
      .def_readonly("stages", &AttendPlan::stages)
      .def_readonly("ctas_per_sm", &AttendPlan::ctas_per_sm)
      .def_property_readonly("family", [](const AttendPlan& p) { return to_string(p.family); })
      .def_readonly("heads", &AttendPlan::heads)
      .def("__repr__", [](const AttendPlan& plan) {
        return fmt::format(
            "AttendPlan(row_warps={}, key_warps={}, warp_rows={}, warp_keys={}, step_keys={}, "
            "stages={}, ctas_per_sm={}, family='{}', heads={})",
            plan.row_warps, plan.key_warps, plan.warp_rows, plan.warp_keys, plan.step_keys,
            plan.stages, plan.ctas_per_sm, to_string(plan.family), plan.heads);
      });
  define_value(attend_type, [](const AttendPlan& plan) {
    return py::dict(py::arg("row_warps") = plan.row_warps, py::arg("key_warps") = plan.key_warps,
                    py::arg("warp_rows") = plan.warp_rows, py::arg("warp_keys") = plan.warp_keys,
                    py::arg("step_keys") = plan.step_keys, py::arg("stages") = plan.stages,
                    py::arg("ctas_per_sm") = plan.ctas_per_sm,
                    py::arg("family") = to_string(plan.family), py::arg("heads") = plan.heads);
  });

  py::class_<TilePlan> tile_type(module, "TilePlan");
  tile_type
      .def(py::init([](AttendPlan decode, AttendPlan prefill, int min_split_blocks, int item_heads,
                       int fixed_split_blocks) {
             return TilePlan{decode, prefill, min_split_blocks, item_heads, fixed_split_blocks};
           }),
           py::kw_only(), py::arg("decode"), py::arg("prefill"), py::arg("min_split_blocks") = 2,
           py::arg("item_heads") = 1, py::arg("fixed_split_blocks") = 0)
      .def_readonly("decode", &TilePlan::decode)
      .def_readonly("prefill", &TilePlan::prefill)
      .def_readonly("min_split_blocks", &TilePlan::min_split_blocks)
      .def_readonly("item_heads", &TilePlan::item_heads)
      .def_readonly("fixed_split_blocks", &TilePlan::fixed_split_blocks)
      .def("__repr__",
           [](const TilePlan& plan) { return fmt::format("TilePlan({})", describe(plan)); });
  define_value(tile_type, [](const TilePlan& plan) {
    return py::dict(py::arg("decode") = plan.decode, py::arg("prefill") = plan.prefill,
                    py::arg("min_split_blocks") = plan.min_split_blocks,
                    py::arg("item_heads") = plan.item_heads,
                    py::arg("fixed_split_blocks") = plan.fixed_split_blocks);
  });
}

}  // namespace

py::bytes cubin_of(const Kernel& kernel) {
  const std::vector<std::byte>& code = kernel.binary().code;
  return {reinterpret_cast<const char*>(code.data()), code.size()};
}

void bind_kernels(py::module_& module) {
  bind_plans(module);
  py::class_<Kernel, std::shared_ptr<Kernel>>(module, "CompiledKernel")
      .def_property_readonly("name", &Kernel::name)
      .def_property_readonly("arch", [](const Kernel& k) { return k.arch().name; })
      .def_property_readonly("entry", [](const Kernel& k) { return k.binary().entry; })
      .def_property_readonly("source", &Kernel::source)
      .def("ptx", &Kernel::intermediate, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("cubin", &cubin_of)
      .def_property_readonly("registers", [](const Kernel& k) { return k.binary().registers; })
      .def_property_readonly("spill_bytes", [](const Kernel& k) { return k.binary().spill_bytes; })
      .def_property_readonly("shared_bytes",
                             [](const Kernel& k) { return k.binary().shared_bytes; })
      .def_property_readonly("threads", [](const Kernel& k) { return k.binary().threads; })
      .def_property_readonly("compiler", [](const Kernel& k) { return k.binary().compiler; })
      .def_property_readonly("compile_ms", [](const Kernel& k) { return k.binary().compile_ms; })
      .def_property_readonly("ready_ms", &Kernel::ready_ms)
      .def_property_readonly("from_cache", &Kernel::from_cache)
      .def("__repr__", [](const Kernel& k) {
        const Binary& b = k.binary();
        return fmt::format(
            "CompiledKernel('{}', arch='{}', registers={}, spill_bytes={}, shared_bytes={}, "
            "compile_ms={:.0f}, "
            "from_cache={})",
            k.name(), b.arch, b.registers, b.spill_bytes, b.shared_bytes, b.compile_ms,
            k.from_cache() ? "True" : "False");
      });
}

}  // namespace lazyrope
