#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <vector>

#include "python/bindings.h"
#include "runtime/emulator/device.h"
#include "runtime/emulator/profile.h"
#include "runtime/emulator/profile_table.h"

namespace lazyrope {
namespace {

namespace py = pybind11;

py::dict dict_of(const ProfileLine& line) {
  py::dict fields;
  fields["kernel"] = line.kernel;
  fields["file"] = line.file;
  fields["line"] = line.line;
  fields["text"] = source_text(line);
  fields["instruction"] = line.instruction;
  fields["executions"] = line.executions;
  fields["lanes"] = line.lanes;
  fields["wavefronts"] = line.wavefronts;
  fields["ideal_wavefronts"] = line.ideal_wavefronts;
  fields["sectors"] = line.sectors;
  fields["ideal_sectors"] = line.ideal_sectors;
  fields["cache_lines"] = line.cache_lines;
  fields["bytes"] = line.bytes;
  return fields;
}

std::vector<py::dict> lines_of(const Profile& profile) {
  std::vector<py::dict> lines;
  for (const ProfileLine& line : profile.lines()) lines.push_back(dict_of(line));
  return lines;
}

py::dict options() {
  const EmulatorOptions& now = emulator_options();
  py::dict fields;
  fields["seed"] = now.seed;
  fields["races"] = now.races;
  fields["resident_threads"] = now.resident_threads;
  // The result is the given object, which its owner in Python keeps alive.
  fields["profile"] = py::cast(now.profile, py::return_value_policy::reference);
  return fields;
}

void set_options(std::uint64_t seed, bool races, int resident_threads, Profile* profile) {
  emulator_device();  // throws SpecError if this build has no emulator
  emulator_options() = {
      .seed = seed, .races = races, .resident_threads = resident_threads, .profile = profile};
}

}  // namespace

void bind_emulator(py::module_& module) {
  py::class_<Profile>(module, "Profile")
      .def(py::init<>())
      .def("lines", &lines_of)
      .def("__repr__",
           [](const Profile& profile) {
             return "Profile(" + std::to_string(profile.lines().size()) + " lines)";
           })
      .def("table", [](const Profile& profile) {
        return profile_table(ordered(profile.lines(), ProfileOrder::kExcess));
      });
  module.def("emulator_options", &options);
  module.def("set_emulator_options", &set_options, py::kw_only(), py::arg("seed"), py::arg("races"),
             py::arg("resident_threads"), py::arg("profile"));
}

}  // namespace lazyrope
