#include "codegen/mask.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>

#include "codegen/error.h"

namespace lazyrope {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<MaskVariant> rows = {
      {"causal", "a query sees the keys at its logical position and before", "ops/mask/causal.cuh"},
      {"full", "every query sees every key", "ops/mask/full.cuh"},
      {"sliding_window",
       "causal, and of those keys only the ones at the last `window` positions",
       "ops/mask/sliding_window.cuh",
       {{"window", "positions that a query sees, its own included", 1}}},
  };
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

std::vector<MaskVariant> mask_variants() {
  const std::lock_guard lock(registry().mutex);
  return registry().rows;
}

MaskVariant mask_variant(std::string_view name) {
  std::vector<std::string> names;
  for (const MaskVariant& row : mask_variants()) {
    if (row.name == name) return row;
    names.push_back(row.name);
  }
  throw SpecError(
      fmt::format("mask \"{}\" is unknown; there are: {}", name, fmt::join(names, ", ")));
}

void validate(std::string_view mask, const MaskParameters& given) {
  const MaskVariant row = mask_variant(mask);
  for (const MaskParameter& parameter : row.parameters) {
    const auto it = given.find(parameter.name);
    if (it == given.end())
      throw SpecError(
          fmt::format("mask \"{}\" needs {} ({})", row.name, parameter.name, parameter.meaning));
    if (it->second < parameter.least)
      throw SpecError(fmt::format("mask \"{}\": {} = {}; it must be at least {}", row.name,
                                  parameter.name, it->second, parameter.least));
  }
  for (const auto& [name, value] : given) {
    const auto known = [&](const MaskParameter& p) { return p.name == name; };
    if (std::none_of(row.parameters.begin(), row.parameters.end(), known))
      throw SpecError(
          fmt::format("mask \"{}\" has no parameter {} (given {})", row.name, name, value));
  }
}

void register_mask_variant(MaskVariant variant) {
  const std::lock_guard lock(registry().mutex);
  for (const MaskVariant& row : registry().rows)
    if (row.name == variant.name)
      throw SpecError(
          fmt::format("mask \"{}\" is there already; choose another name", variant.name));
  registry().rows.push_back(std::move(variant));
}

}  // namespace lazyrope
