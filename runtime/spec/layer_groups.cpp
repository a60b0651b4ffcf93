#include "runtime/spec/layer_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "codegen/error.h"
#include "runtime/spec/model_config.h"

namespace lazyrope {

void validate(const LayerGroup& group) {
  validate(group.spec);
  const std::vector<int>& layers = group.layers;
  const bool is_ascending =
      std::ranges::adjacent_find(layers, std::ranges::greater_equal()) == layers.end();
  if (layers.empty() || layers.front() < 0 || !is_ascending)
    throw SpecError(fmt::format(
        "layers = [{}]; they must be numbers of layers from 0 on, ascending, and at least one",
        fmt::join(layers, ", ")));
}

std::vector<LayerGroup> attention_groups_from_hf(const std::string& json,
                                                 const std::optional<std::string>& dtype,
                                                 const RopeUse& use) {
  std::vector<LayerGroup> groups;
  const LayerSpecs specs = attention_specs_from_hf(json, dtype, use);
  for (std::size_t layer = 0; layer < specs.size(); ++layer) {
    const std::optional<AttentionSpec>& spec = specs[layer];
    if (!spec) continue;
    auto group = std::ranges::find(groups, *spec, &LayerGroup::spec);
    if (group == groups.end()) group = groups.insert(groups.end(), {*spec, {}});
    group->layers.push_back(static_cast<int>(layer));
  }
  return groups;
}

}  // namespace lazyrope
