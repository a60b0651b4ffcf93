#include "runtime/doctor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "cache/error.h"
#include "codegen/error.h"
#include "codegen/nearest_name.h"
#include "runtime/base/error.h"
#include "runtime/base/version.h"
#include "runtime/driver/context.h"
#include "runtime/emulator/device.h"
#include "runtime/engine/devices.h"
#include "runtime/engine/kernel_entry.h"

namespace lazyrope {
namespace {

using Json = nlohmann::ordered_json;

Json nvrtc_facts(Engine& engine) {
  Json facts;
  facts["tried"] = Json::array();
  for (const NvrtcAttempt& attempt : engine.nvrtc().attempts())
    facts["tried"].push_back(
        {{"location", attempt.location}, {"file", attempt.file}, {"outcome", attempt.outcome}});
  try {
    const NvrtcLibrary& library = engine.nvrtc().library();
    facts["path"] = library.path();
    facts["builtins"] = library.builtins_path();
    facts["version"] = fmt::format("{}.{}", library.version().major, library.version().minor);
    facts["identity"] = library.identity();
    const std::string conflict = driver_conflict(library.version(), installed_cuda_version());
    if (!conflict.empty()) facts["problem"] = conflict;
  } catch (const CompileError&) {
    facts["missing"] =
        "no NVRTC: kernels that are not in the cache cannot be compiled; pip install "
        "\"nvidia-cuda-nvrtc>=13.0,<14\", or set LAZYROPE_NVRTC";
  }
  return facts;
}

Json gpu_facts(const DeviceInfo& info) {
  Json facts = {
      {"ordinal", info.ordinal},
      {"name", info.name},
      {"compute_capability", fmt::format("{}.{}", info.compute_major, info.compute_minor)},
      {"sm_count", info.sm_count},
      {"l2_mib", info.l2_bytes >> 20}};
  try {
    facts["arch"] = arch_for_device(info.compute_major, info.compute_minor).name;
  } catch (const SpecError& error) {
    facts["arch"] = nullptr;
    facts["problem"] = error.what();
  }
  return facts;
}

Json driver_facts() {
  try {
    const Driver& driver = Driver::get();
    const Devices& devices = Devices::get();
    Json facts = {
        {"cuda", fmt::format("{}.{}", driver.version() / 1000, driver.version() % 1000 / 10)}};
    facts["gpus"] = Json::array();
    for (int i = 0; i < devices.count(); ++i) facts["gpus"].push_back(gpu_facts(devices.info(i)));
    return facts;
  } catch (const DriverError& error) {
    return {{"missing", error.what()}};
  }
}

Json emulator_facts(const Config& config) {
  const std::shared_ptr<Compiler> compiler = host_compiler(config.host_compiler);
  if (compiler == nullptr)
    return {{"missing", "not in this build: LAZYROPE_EMULATOR was OFF (it needs Boost.Context)"}};
  const std::string identity = compiler->identity();
  if (!identity.empty()) return {{"compiler", identity}};
  return {{"missing", fmt::format("no C++20 compiler to build kernels with: tried \"{}\"; install "
                                  "one (Debian: apt-get install g++), or name it in LAZYROPE_CXX",
                                  config.host_compiler)}};
}

Json cache_facts(const Engine& engine) {
  Json facts = {{"directory", engine.config().cache_dir},
                {"policy", to_string(engine.config().policy)},
                {"max_bytes", engine.config().cache_max_bytes},
                {"layers", engine.config().cache_layers}};
  try {
    const std::vector<ListedEntry> entries = engine.store().list();
    const auto bad = [](const ListedEntry& e) { return !e.error.empty(); };
    facts["entries"] = entries.size();
    facts["bad_entries"] = std::count_if(entries.begin(), entries.end(), bad);
    facts["bytes"] = engine.store().size_bytes();
    facts["other_compilers"] = kernels_of_other_nvrtc(entries, engine.nvrtc_name());
  } catch (const CacheError& error) {
    facts["problem"] = error.what();
  }
  return facts;
}

Json value_of(const ConfigVariable& variable) {
  return variable.value ? Json(*variable.value) : Json(nullptr);
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

// Reports the environment as it was read: a variable that was set later has no effect.
Json environment_facts(const Config& config) {
  const std::vector<ConfigVariable> now = config_variables();
  const std::vector<ConfigVariable>& read = config.environment.empty() ? now : config.environment;
  Json facts = Json::array();
  for (std::size_t i = 0; i < now.size(); ++i) {
    const ConfigVariable& variable = read[i];
    facts.push_back({{"name", variable.name},
                     {"value", value_of(variable)},
                     {"now", value_of(now[i])},
                     {"fault", text_or_null(variable.fault)},
                     {"default", variable.default_value},
                     {"meaning", variable.meaning},
                     {"allowed", variable.allowed}});
  }
  return facts;
}

// Reports variables that are likely misspelt: lazyrope does not read them.
Json unknown_variable_facts() {
  std::vector<std::string> known;
  for (const ConfigVariable& variable : config_variables()) known.push_back(variable.name);
  Json facts = Json::array();
  for (const std::string& name : unknown_variables())
    facts.push_back({{"name", name}, {"nearest", text_or_null(nearest_name(name, known))}});
  return facts;
}

std::string value_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void append_nvrtc(const Json& nvrtc, std::string& text) {
  text += "NVRTC\n";
  for (const Json& tried : nvrtc["tried"])
    text +=
        fmt::format("  {:<24} {}{}{}\n", value_text(tried["location"]), value_text(tried["file"]),
                    value_text(tried["file"]).empty() ? "" : ": ", value_text(tried["outcome"]));
  if (nvrtc.contains("missing"))
    text += fmt::format("  {}\n", value_text(nvrtc["missing"]));
  else
    text += fmt::format("  chosen: {} (version {})\n", value_text(nvrtc["path"]),
                        value_text(nvrtc["version"]));
  if (nvrtc.contains("problem")) text += fmt::format("  {}\n", value_text(nvrtc["problem"]));
}

void append_driver(const Json& driver, std::string& text) {
  text += "driver\n";
  if (driver.contains("missing")) {
    text += fmt::format("  {}\n", value_text(driver["missing"]));
    return;
  }
  text += fmt::format("  CUDA {}\n", value_text(driver["cuda"]));
  for (const Json& gpu : driver["gpus"])
    text += fmt::format(
        "  GPU {}: {}, compute capability {}, {} SMs, arch {}\n", value_text(gpu["ordinal"]),
        value_text(gpu["name"]), value_text(gpu["compute_capability"]), value_text(gpu["sm_count"]),
        gpu["arch"].is_null() ? value_text(gpu["problem"]) : value_text(gpu["arch"]));
}

void append_emulator(const Json& emulator, std::string& text) {
  text += "emulator\n";
  if (emulator.contains("missing"))
    text += fmt::format("  {}\n", value_text(emulator["missing"]));
  else
    text += fmt::format("  builds kernels with {}\n", value_text(emulator["compiler"]));
}

void append_cache(const Json& cache, std::string& text) {
  text += "cache\n";
  const std::string directory = value_text(cache["directory"]);
  text += fmt::format("  directory: {}\n", directory.empty() ? "none (memory only)" : directory);
  if (cache.contains("problem"))
    text += fmt::format("  {}\n", value_text(cache["problem"]));
  else
    text += fmt::format("  {} entries, {} bytes of at most {}, {} bad; policy {}\n",
                        value_text(cache["entries"]), value_text(cache["bytes"]),
                        value_text(cache["max_bytes"]), value_text(cache["bad_entries"]),
                        value_text(cache["policy"]));
  if (cache.value("other_compilers", 0) > 0)
    text += fmt::format("  {} kernels were compiled by another NVRTC than the one chosen\n",
                        value_text(cache["other_compilers"]));
  for (const Json& layer : cache["layers"])
    text += fmt::format("  read-only layer: {}\n", value_text(layer));
}

void append_environment(const Json& environment, std::string& text) {
  text += "environment\n";
  for (const Json& variable : environment) {
    const bool set = !variable["value"].is_null();
    const std::string value = set ? value_text(variable["value"])
                                  : fmt::format("not set ({})", value_text(variable["default"]));
    const std::string now = variable["now"].is_null() ? "not set" : value_text(variable["now"]);
    const bool changed = variable["now"] != variable["value"];
    text += fmt::format("  {:<26} {}{}\n", value_text(variable["name"]), value,
                        changed ? fmt::format("; now {}, too late for this process", now) : "");
    if (!variable["fault"].is_null())
      text += fmt::format("    {}\n", value_text(variable["fault"]));
  }
}

void append_unknown_variables(const Json& variables, std::string& text) {
  for (const Json& variable : variables)
    text +=
        fmt::format("  {:<26} unknown: lazyrope does not read it{}\n", value_text(variable["name"]),
                    variable["nearest"].is_null()
                        ? ""
                        : fmt::format(" (did you mean {}?)", value_text(variable["nearest"])));
}

}  // namespace

std::string Diagnosis::text() const {
  std::string text = fmt::format("lazyrope {}\n", value_text(facts["version"]));
  append_nvrtc(facts["nvrtc"], text);
  append_driver(facts["driver"], text);
  append_emulator(facts["emulator"], text);
  append_cache(facts["cache"], text);
  append_environment(facts["environment"], text);
  append_unknown_variables(facts["unknown_variables"], text);
  std::vector<std::string> names;
  for (const Json& arch : facts["archs"]) names.push_back(arch);
  text += fmt::format("compiles for: {}\n", fmt::join(names, ", "));
  return text;
}

std::vector<std::string> Diagnosis::variable_faults() const {
  std::vector<std::string> faults;
  for (const Json& variable : facts["environment"])
    if (!variable["fault"].is_null()) faults.push_back(variable["fault"]);
  return faults;
}

Diagnosis doctor() {
  try {
    return doctor(Engine::get());
  } catch (const SpecError&) {
    Config config = Config::from_environment_or_defaults();
    config.nvrtc_directories = nvrtc_directories();
    Engine engine(std::move(config));
    return doctor(engine);
  }
}

Diagnosis doctor(Engine& engine) {
  Diagnosis diagnosis;
  diagnosis.facts["version"] = version();
  diagnosis.facts["nvrtc"] = nvrtc_facts(engine);
  diagnosis.facts["driver"] = driver_facts();
  diagnosis.facts["emulator"] = emulator_facts(engine.config());
  diagnosis.facts["cache"] = cache_facts(engine);
  diagnosis.facts["environment"] = environment_facts(engine.config());
  diagnosis.facts["unknown_variables"] = unknown_variable_facts();
  diagnosis.facts["archs"] = compilable_archs();
  return diagnosis;
}

}  // namespace lazyrope
