#include "codegen/config_variants.h"

#include <algorithm>
#include <functional>

namespace lazyrope {
namespace {

constexpr int kMaxDifferences = 2;
constexpr int kMaxRegisters = 255;  // per thread
constexpr int kRegisterGranularity = 8;
constexpr int kOtherRegisters = 60;  // for addresses, statistics and loop state

// Members of a tile that always change together, and the values that they take.
struct Range {
  std::vector<int TileConfig::*> members;
  std::vector<int> values;

  bool tells_apart(const TileConfig& a, const TileConfig& b) const {
    return std::ranges::any_of(members, [&](auto member) { return a.*member != b.*member; });
  }
};

// Returns the configs that differ from `config` in at most `max_differences` ranges, `config`
// first.
std::vector<TileConfig> neighbours(const TileConfig& config, const std::vector<Range>& ranges,
                                   int max_differences) {
  const auto differences = [&](const TileConfig& other) {
    return std::ranges::count_if(
        ranges, [&](const Range& range) { return range.tells_apart(config, other); });
  };
  std::vector<TileConfig> found = {config};
  for (const Range& range : ranges) {
    const std::vector<TileConfig> before = found;
    for (TileConfig changed : before) {
      for (const int value : range.values) {
        for (const auto member : range.members) changed.*member = value;
        if (range.tells_apart(config, changed) && differences(changed) <= max_differences)
          found.push_back(changed);
      }
    }
  }
  return found;
}

// Estimates whether a thread has enough registers for its fp32 results, its scores and all else. So
// configs that would certainly spill are not compiled.
bool fits_registers(const TileConfig& config, int head_dim) {
  if (config.family == Family::kSm90a) return true;  // setmaxnreg divides registers among its warps
  const int needed = config.warp_m * (head_dim + config.mma_n) / kThreadsPerWarp + kOtherRegisters;
  const int share = kRegistersPerSm / (config.threads(head_dim) * config.ctas_per_sm);
  return needed <= std::min(kMaxRegisters, share / kRegisterGranularity * kRegisterGranularity);
}

// Returns variants with the same number of rows per head: a tile of one head, and one of two heads.
// The keys of two heads are loaded together, and each head has its own warpgroup.
std::vector<TileConfig> with_other_heads(const TileConfig& config) {
  if (config.divides_rows()) return {};
  const auto with_heads = [&](int heads) {
    TileConfig changed = config;
    changed.heads = changed.warps_m = heads;
    changed.warp_m = config.rows_per_head();
    changed.stages = config.stages * config.heads / heads;
    return changed;
  };
  return {with_heads(1), with_heads(2)};
}

// Returns the tiles whose neighbours are variants: the config's own tile, those with other numbers
// of heads, and the first tile that configs() has for each other family of the arch.
std::vector<TileConfig> starting_points(const KernelConfig& config, TileConfig KernelConfig::* tile,
                                        const KernelSpec& spec, const Arch& arch) {
  std::vector<TileConfig> result = {config.*tile};
  for (const TileConfig& heads : with_other_heads(config.*tile)) {
    KernelConfig changed = config;
    changed.*tile = heads;
    if (changed != config && is_legal(changed, spec, arch)) result.push_back(heads);
  }
  for (const KernelConfig& other : configs(spec, arch))
    if (std::ranges::find(result, (other.*tile).family, &TileConfig::family) == result.end() &&
        (other.*tile).divides_rows() == (config.*tile).divides_rows())
      result.push_back(other.*tile);
  return result;
}

// Returns the number of ranges in which a neighbour of `base` may differ from it. Another number of
// heads than that of `config` is already one difference.
int max_differences(const TileConfig& base, const TileConfig& config) {
  const bool has_other_heads = base.family == config.family && base.heads != config.heads;
  return kMaxDifferences - (has_other_heads ? 1 : 0);
}

using Worthwhile = std::function<bool(const TileConfig&)>;  // tells whether to measure a tile

std::vector<KernelConfig> variants(const KernelConfig& config, TileConfig KernelConfig::* tile,
                                   const std::vector<Range>& ranges,
                                   const Worthwhile& is_worthwhile, const KernelSpec& spec,
                                   const Arch& arch) {
  std::vector<KernelConfig> found = {config};
  for (const TileConfig& base : starting_points(config, tile, spec, arch))
    for (const TileConfig& attend : neighbours(base, ranges, max_differences(base, config.*tile))) {
      KernelConfig changed = config;
      changed.*tile = attend;
      if (changed != config && fits_registers(attend, spec.head_dim) && is_worthwhile(attend) &&
          is_legal(changed, spec, arch))
        found.push_back(changed);
    }
  return found;
}

// Returns the keys that one SM has in flight.
int keys_in_flight(const TileConfig& config) {
  return config.ctas_per_sm * config.heads * config.block_n() * (config.stages - 1);
}
// Returns the query rows that one SM computes at once.
int rows_in_flight(const TileConfig& config) { return config.ctas_per_sm * config.block_m(); }

}  // namespace

// All variants have the same rows per head, because these decide which requests the decode kernel
// serves. A variant with less than half as many keys in flight as `config` is left out, because it
// would leave memory bandwidth unused.
std::vector<KernelConfig> decode_variants(const KernelConfig& config, const KernelSpec& spec,
                                          const Arch& arch) {
  const std::vector<Range> ranges = {{{&TileConfig::warps_n}, {2, 4, 8}},
                                     {{&TileConfig::warp_n, &TileConfig::mma_n}, {16, 32, 64}},
                                     {{&TileConfig::stages}, {2, 3, 4, 5, 6, 8}},
                                     {{&TileConfig::ctas_per_sm}, {1, 2, 3, 4}}};
  const auto is_worthwhile = [&](const TileConfig& attend) {
    return attend.rows_per_head() == config.decode.rows_per_head() &&
           2 * keys_in_flight(attend) >= keys_in_flight(config.decode);
  };
  return variants(config, &KernelConfig::decode, ranges, is_worthwhile, spec, arch);
}

std::vector<KernelConfig> prefill_variants(const KernelConfig& config, const KernelSpec& spec,
                                           const Arch& arch) {
  const std::vector<Range> ranges = {
      {{&TileConfig::warps_m}, {4, 8}},       {{&TileConfig::warp_m}, {16, 32, 48, 64}},
      {{&TileConfig::warp_n}, {32, 64, 128}}, {{&TileConfig::mma_n}, {16, 32, 64}},
      {{&TileConfig::stages}, {2, 3}},        {{&TileConfig::ctas_per_sm}, {1, 2, 3}}};
  const auto is_worthwhile = [&](const TileConfig& attend) {
    return 2 * rows_in_flight(attend) >= rows_in_flight(config.prefill);
  };
  return variants(config, &KernelConfig::prefill, ranges, is_worthwhile, spec, arch);
}

std::vector<KernelConfig> split_variants(const KernelConfig& config) {
  std::vector<KernelConfig> found = {config};
  for (const int blocks : {1, 2, 4, 8}) {
    KernelConfig changed = config;
    changed.min_split_blocks = blocks;
    if (changed != config) found.push_back(changed);
  }
  return found;
}

}  // namespace lazyrope
