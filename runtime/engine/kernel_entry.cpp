#include "runtime/engine/kernel_entry.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "cache/error.h"
#include "cache/sha256.h"
#include "codegen/template_text.h"
#include "runtime/base/version.h"
#include "runtime/driver/nvrtc_library.h"
#include "runtime/engine/tuning.h"

namespace lazyrope {
namespace {

// nlohmann::json would convert true, 1.5 or 1e300 to some int.
int count_in(const nlohmann::json& facts, const char* name) {
  const nlohmann::json& value = facts.at(name);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT_MAX)
    throw CacheError(fmt::format("the entry's facts are incomplete: {} is no count", name));
  return value.get<int>();
}

// Returns the digest of all template files, those that were registered at run time excepted.
std::string templates_digest() {
  std::string text;
  for (const TemplateFile& file : embedded_templates())
    text += fmt::format("{}:{}\n{}:{}\n", file.path.size(), file.path, file.text.size(), file.text);
  return to_hex(sha256(std::as_bytes(std::span(text))));
}

}  // namespace

KeyFields origin_facts(const RenderedKernel& rendered) {
  return {{"spec", rendered.spec},
          {"config", rendered.config},
          {"templates", templates_digest()},
          {"version", std::string(version())}};
}

Entry entry_of(const Binary& binary, const KeyFields& origin) {
  nlohmann::json facts = {{"entry", binary.entry},         {"arch", binary.arch},
                          {"threads", binary.threads},     {"shared_bytes", binary.shared_bytes},
                          {"registers", binary.registers}, {"spill_bytes", binary.spill_bytes},
                          {"compiler", binary.compiler},   {"compile_ms", binary.compile_ms}};
  for (const auto& [name, value] : origin) facts[name] = value;
  return {facts.dump(), binary.code};
}

Binary binary_of(Entry entry) {
  try {
    const nlohmann::json facts = nlohmann::json::parse(entry.facts);
    return {facts.at("entry"),
            facts.at("arch"),
            count_in(facts, "threads"),
            count_in(facts, "shared_bytes"),
            count_in(facts, "registers"),
            count_in(facts, "spill_bytes"),
            facts.at("compiler"),
            facts.at("compile_ms"),
            std::move(entry.payload)};
  } catch (const nlohmann::json::exception& error) {
    throw CacheError(fmt::format("the entry's facts are incomplete: {}", error.what()));
  }
}

std::ptrdiff_t kernels_of_other_nvrtc(const std::vector<ListedEntry>& entries,
                                      const std::string& present) {
  const auto text = [](const nlohmann::json& facts, const char* name) {
    const bool has_text = facts.is_object() && facts.contains(name) && facts[name].is_string();
    return has_text ? facts[name].get<std::string>() : std::string();
  };
  return std::ranges::count_if(entries, [&](const ListedEntry& entry) {
    const auto facts = nlohmann::json::parse(entry.facts, /*callback=*/nullptr,
                                             /*allow_exceptions=*/false);
    const std::string compiler = text(facts, "compiler");
    return !present.empty() && text(facts, "entry") != kTuningEntry && nvrtc_version_of(compiler) &&
           compiler != present;
  });
}

}  // namespace lazyrope
