#include "codegen/mask.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <mutex>

#include "codegen/error.h"

namespace lazyrope {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<MaskVariant> rows = {
      {"causal", "a query sees the keys at its logical position and before", "ops/mask/causal.cuh"},
      {"full", "every query sees every key", "ops/mask/full.cuh"},
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

void register_mask_variant(MaskVariant variant) {
  const std::lock_guard lock(registry().mutex);
  for (const MaskVariant& row : registry().rows)
    if (row.name == variant.name)
      throw SpecError(
          fmt::format("mask \"{}\" is there already; choose another name", variant.name));
  registry().rows.push_back(std::move(variant));
}

}  // namespace lazyrope
