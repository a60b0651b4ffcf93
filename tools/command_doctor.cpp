#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/doctor.h"
#include "runtime/engine/engine.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/output.h"
#include "tools/vllm_plugin.h"

namespace lazyrope {
namespace {

constexpr const char* kDoctorFooter =
    R"(Run this when a kernel cannot be compiled or launched. The command prints every path where
it looked for NVRTC, the driver and its GPUs, the emulator's C++ compiler, the cache, and the
environment variables that lazyrope reads. It runs whatever they hold: it shows why a value cannot be
used, and goes on with the default. It also names the variables LAZYROPE_* that lazyrope does not
read. If vLLM is installed in the command's Python environment, the command shows whether
lazyrope.vllm serves it, and whether vLLM finds the plug-in.
--json prints an object: version, nvrtc, driver, emulator, cache, environment, unknown_variables,
archs, vllm.
Exit codes: 0 if there is an NVRTC or a usable cached kernel, 1 if there is neither or if a
variable's value cannot be used, 2 wrong usage.

Example:
  lazyrope doctor --json | jq .nvrtc.path)";

struct DoctorOptions {
  std::string cache;
  bool json = false;
};

bool has_cached_kernel(const OrderedJson& cache) {
  return cache.value("entries", 0) > cache.value("bad_entries", 0);
}

int run_doctor(const DoctorOptions& options) {
  Engine engine(config_for_doctor(options.cache));
  Diagnosis diagnosis = doctor(engine);
  const OrderedJson vllm = vllm_facts();
  const std::string text = diagnosis.text() + vllm_text(vllm);
  diagnosis.facts["vllm"] = vllm;
  print(options.json ? json_text(diagnosis.facts) : text);
  const std::vector<std::string> faults = diagnosis.variable_faults();
  for (const std::string& fault : faults) fmt::print(stderr, "lazyrope: {}\n", fault);
  if (!faults.empty()) return 1;
  if (!diagnosis.facts["nvrtc"].contains("missing") || has_cached_kernel(diagnosis.facts["cache"]))
    return 0;
  fmt::print(
      stderr,
      "lazyrope: no kernel can run here: there is no NVRTC to compile one, and the cache has "
      "no usable kernel\n");
  return 1;
}

}  // namespace

Command doctor_command(CLI::App& root) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App* const app =
      root.add_subcommand("doctor", "Show which NVRTC, driver, GPUs and cache are found, and why");
  app->footer(kDoctorFooter);
  add_cache_option(*app, options->cache);
  add_json_option(*app, options->json);
  return {app, [options] { return run_doctor(*options); }};
}

}  // namespace lazyrope
