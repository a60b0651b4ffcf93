#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/bindings.h"
#include "python/log_bridge.h"
#include "runtime/engine/kernel.h"

namespace lazyrope {
namespace {

namespace py = pybind11;

void bind_configs(py::module_& module) {
  py::class_<TileConfig> tile_config_type(module, "TileConfig");
  tile_config_type
      .def(py::init([](int warps_m, int warps_n, int warp_m, int warp_n, int mma_n, int stages,
                       int ctas_per_sm, const std::string& family, int heads) {
             return TileConfig{warps_m,     warps_n,           warp_m, warp_n, mma_n, stages,
                               ctas_per_sm, family_of(family), heads};
           }),
           py::kw_only(), py::arg("warps_m"), py::arg("warps_n"), py::arg("warp_m"),
           py::arg("warp_n"), py::arg("mma_n"), py::arg("stages"), py::arg("ctas_per_sm"),
           py::arg("family") = "sm80", py::arg("heads") = 1)
      .def_readonly("warps_m", &TileConfig::warps_m)
      .def_readonly("warps_n", &TileConfig::warps_n)
      .def_readonly("warp_m", &TileConfig::warp_m)
      .def_readonly("warp_n", &TileConfig::warp_n)
      .def_readonly("mma_n", &TileConfig::mma_n)
      .def_readonly("stages", &TileConfig::stages)
      .def_readonly("ctas_per_sm", &TileConfig::ctas_per_sm)
      .def_property_readonly("family", [](const TileConfig& p) { return to_string(p.family); })
      .def_readonly("heads", &TileConfig::heads);
  define_value(tile_config_type, [](const TileConfig& config) {
    return py::dict(py::arg("warps_m") = config.warps_m, py::arg("warps_n") = config.warps_n,
                    py::arg("warp_m") = config.warp_m, py::arg("warp_n") = config.warp_n,
                    py::arg("mma_n") = config.mma_n, py::arg("stages") = config.stages,
                    py::arg("ctas_per_sm") = config.ctas_per_sm,
                    py::arg("family") = to_string(config.family), py::arg("heads") = config.heads);
  });

  py::class_<KernelConfig> kernel_config_type(module, "KernelConfig");
  kernel_config_type
      .def(py::init([](TileConfig decode, TileConfig prefill, int min_split_blocks,
                       int heads_per_work_tile, int fixed_split_blocks, int share_above_kib,
                       bool equal_splits) {
             return KernelConfig{decode,
                                 prefill,
                                 min_split_blocks,
                                 heads_per_work_tile,
                                 fixed_split_blocks,
                                 share_above_kib,
                                 equal_splits};
           }),
           py::kw_only(), py::arg("decode"), py::arg("prefill"), py::arg("min_split_blocks") = 2,
           py::arg("heads_per_work_tile") = 1, py::arg("fixed_split_blocks") = 0,
           py::arg("share_above_kib") = 131072, py::arg("equal_splits") = true)
      .def_readonly("decode", &KernelConfig::decode)
      .def_readonly("prefill", &KernelConfig::prefill)
      .def_readonly("min_split_blocks", &KernelConfig::min_split_blocks)
      .def_readonly("heads_per_work_tile", &KernelConfig::heads_per_work_tile)
      .def_readonly("fixed_split_blocks", &KernelConfig::fixed_split_blocks)
      .def_readonly("share_above_kib", &KernelConfig::share_above_kib)
      .def_readonly("equal_splits", &KernelConfig::equal_splits);
  define_value(kernel_config_type, [](const KernelConfig& config) {
    return py::dict(py::arg("decode") = config.decode, py::arg("prefill") = config.prefill,
                    py::arg("min_split_blocks") = config.min_split_blocks,
                    py::arg("heads_per_work_tile") = config.heads_per_work_tile,
                    py::arg("fixed_split_blocks") = config.fixed_split_blocks,
                    py::arg("share_above_kib") = config.share_above_kib,
                    py::arg("equal_splits") = config.equal_splits);
  });
}

}  // namespace

std::string call_text(const py::object& type, const py::dict& arguments) {
  std::string text;
  for (const auto& [name, value] : arguments)
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", py::cast<std::string>(name),
                        py::cast<std::string>(py::repr(value)));
  return fmt::format("{}({})", py::cast<std::string>(type.attr("__name__")), text);
}

py::bytes cubin_of(const Kernel& kernel) {
  const std::vector<std::byte>& code = kernel.binary().code;
  return {reinterpret_cast<const char*>(code.data()), code.size()};
}

void bind_kernels(py::module_& module) {
  bind_configs(module);
  py::class_<Kernel, std::shared_ptr<Kernel>>(module, "CompiledKernel")
      .def_property_readonly("name", &Kernel::name)
      .def_property_readonly("arch", [](const Kernel& k) { return k.arch().name; })
      .def_property_readonly("entry", [](const Kernel& k) { return k.binary().entry; })
      .def_property_readonly("source", &Kernel::source)
      .def("ptx", &Kernel::intermediate, py::call_guard<LogDelivery, py::gil_scoped_release>())
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
            "compile_ms={:.0f}, from_cache={})",
            k.name(), b.arch, b.registers, b.spill_bytes, b.shared_bytes, b.compile_ms,
            k.from_cache() ? "True" : "False");
      });
}

}  // namespace lazyrope
