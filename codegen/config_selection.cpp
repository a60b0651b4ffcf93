// This file finds the configs of a spec on an arch. It adapts the rows of the table to the spec and
// keeps those that are legal on the arch.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "codegen/config_table.h"
#include "codegen/error.h"
#include "codegen/kernel_config.h"

namespace lazyrope {
namespace {

// An SM has four warp schedulers. The warps of one scheduler share this many registers per lane.
constexpr int kRegistersPerLane = kRegistersPerSm / 4 / 32;

// Returns the number of CTAs that the shared memory of an SM has room for, 1 to `max`.
int ctas_that_fit(const TileConfig& config, const KernelSpec& spec, const Arch& arch, int max) {
  const int bytes = config.shared_bytes(spec);
  return std::clamp(arch.shared_per_sm / (bytes + kReservedSharedPerBlock), 1, max);
}

// Tells whether the shared memory of an SM has room for config.ctas_per_sm CTAs.
bool has_room(const TileConfig& config, const KernelSpec& spec, const Arch& arch) {
  const int bytes = config.shared_bytes(spec);
  return bytes <= arch.shared_per_block &&
         config.ctas_per_sm * (bytes + kReservedSharedPerBlock) <= arch.shared_per_sm;
}

// Returns the prefill tile for a pool of 8 bits. A block of 8-bit keys is widened before it is
// used. Longer blocks, and more rows that share a block, make this cheaper where they fit.
TileConfig fp8_prefill(TileConfig config, const KernelSpec& spec, const Arch& arch) {
  TileConfig longer = config;
  longer.warp_n = 128;
  longer.ctas_per_sm = 1;
  if (spec.head_dim <= 80) longer.warps_m = 8;
  const bool gains = spec.head_dim <= 80 || spec.head_dim == 160;
  if (gains && longer.shared_bytes(spec) <= arch.shared_per_block) return longer;
  // The pool's scale takes one register more, but 32 rows with 128 columns and 64 scores each leave
  // none.
  if (config.warp_m == 32 && spec.head_dim >= 128) config.mma_n = 32;
  return config;
}

// Returns the tile with as many stages of its ring as there is room for.
TileConfig with_fitting_stages(TileConfig config, const KernelSpec& spec, const Arch& arch) {
  while (config.stages > 2 && !has_room(config, spec, arch)) --config.stages;
  return config;
}

// Returns the prefill tile with as many keys a block as there is room for.
TileConfig with_fitting_keys(TileConfig config, const KernelSpec& spec, const Arch& arch) {
  constexpr int kMinKeys = 16;
  while (config.warp_n > kMinKeys && !has_room(config, spec, arch)) {
    config.warp_n /= 2;
    config.mma_n = std::min(config.mma_n, config.warp_n);
  }
  return config;
}

// Returns the keys of one product of prefill with 32 rows a warp, where rows look entries up. The
// look-up takes registers that 64 scores do not leave. From sm_100 on the code takes more
// registers, so that 32 scores do not leave enough either.
int keys_of_look_up(const Arch& arch) { return arch.major >= 10 ? 16 : 32; }

// Returns the decode tile for a pool of 8 bits. Keys take half the bytes, so a block has twice as
// many, and the ring has as many stages as there is room for.
TileConfig fp8_decode(TileConfig config, const KernelSpec& spec, const Arch& arch) {
  config.warp_n = config.mma_n = 32;
  constexpr int kMaxStages = 8;
  config.stages = kMaxStages;
  return with_fitting_stages(config, spec, arch);
}

// Returns the number of KV heads whose keys are read together. Reading less than 256 contiguous
// bytes at a time wastes bandwidth.
int heads_read_together(const KernelSpec& spec) {
  return spec.head_dim * bytes_of(spec.pool_dtype()) < 256 ? 2 : 1;
}

// Returns the decode tile for a group with more query heads than a decode tile has rows. Its warps
// divide the rows, as in prefill, but there are only as many warps as the rows need. Several CTAs
// on an SM hide each other's latency.
TileConfig wide_decode(const TileConfig& prefill, const KernelSpec& spec, const Arch& arch) {
  TileConfig config = prefill;
  config.warps_m = (spec.group_size + 15) / 16;
  config.warp_m = 16;
  if (config.block_m() >= prefill.block_m()) return prefill;
  const int registers = spec.head_dim / 2 + 80;  // the accumulators of 16 rows, and all others
  const auto has_registers = [&](int ctas) {
    const int warps_per_scheduler = (ctas * config.warps_m + 3) / 4;
    return registers * warps_per_scheduler <= kRegistersPerLane;
  };
  config.ctas_per_sm = ctas_that_fit(config, spec, arch,
                                     has_registers(3)   ? 3
                                     : has_registers(2) ? 2
                                                        : 1);
  return config;
}

// Fixes the KV splits at about 1024 tokens where the spec asks for batch invariance.
KernelConfig with_fixed_splits(KernelConfig config, const KernelSpec& spec) {
  constexpr int kSplitTokens = 1024;
  if (spec.batch_invariant)
    config.fixed_split_blocks = std::max(kSplitTokens / config.decode.block_n(), 1);
  return config;
}

// Returns the config of a row, adapted to the spec.
KernelConfig config_of(const Sm80Row& row, const KernelSpec& spec, const Arch& arch) {
  KernelConfig config = row.config;
  config.heads_per_work_tile = heads_read_together(spec);
  if (spec.has_fp8_pool()) {
    config.decode = fp8_decode(config.decode, spec, arch);
    config.prefill = fp8_prefill(config.prefill, spec, arch);
  }
  // Some rows leave no room for the biases of keys, or for the best entries of memories.
  if (spec.key_bias || spec.states) config.decode = with_fitting_stages(config.decode, spec, arch);
  if (spec.states) config.prefill = with_fitting_keys(config.prefill, spec, arch);
  if (spec.states && config.prefill.warp_m == 32 && spec.head_dim >= 96)
    config.prefill.mma_n = std::min(config.prefill.mma_n, keys_of_look_up(arch));
  if (spec.group_size > config.decode.block_m())
    config.decode = wide_decode(config.prefill, spec, arch);
  return with_fixed_splits(config, spec);
}

// Returns the reason why an arch cannot have the config of a row, or "" if it can.
std::string rejection_reason(const Sm80Row& row, const KernelSpec& spec, const Arch& arch) {
  if (const int needed = row.shared_kib_per_sm * 1024; needed > arch.shared_per_sm)
    return fmt::format("its smallest config is for SMs with {} bytes of shared memory; {} has {}",
                       needed, arch.name, arch.shared_per_sm);
  return tile_error(config_of(row, spec, arch), spec, arch);
}

std::vector<Sm80Row> rows_of(int head_dim) {
  std::vector<Sm80Row> result = sm80_rows();
  std::erase_if(result, [&](const Sm80Row& row) { return row.head_dim != head_dim; });
  return result;
}

// Replaces the tiles for which family sm90a has one. A decode tile whose warps divide rows stays,
// because it has more rows than the family's decode kernel can compute.
KernelConfig with_sm90a_tiles(KernelConfig config, const KernelSpec& spec, const Arch& arch) {
  if (spec.key_form == KeyForm::kRaw) return config;  // the family has no kernels for raw keys
  for (const Sm90aRow& row : sm90a_rows()) {
    const TileConfig& before = config.*row.tile;
    const bool serves = row.config.divides_rows() ? row.compute == spec.compute
                                                  : spec.group_size <= row.config.rows_per_head();
    if (row.head_dim != spec.head_dim || (spec.softcap > 0.0 && !row.allows_softcap) || !serves ||
        before.family == Family::kSm90a || before.divides_rows() != row.config.divides_rows() ||
        (spec.states && row.config.divides_rows()))  // prefill of the family has no states
      continue;
    KernelConfig changed = config;
    changed.*row.tile = row.config;
    if (row.tile == &KernelConfig::decode) changed.min_split_blocks = 1;  // fastest on an H200
    changed = with_fixed_splits(changed, spec);
    if (tile_error(changed, spec, arch).empty()) config = changed;
  }
  return config;
}

// Returns the legal configs. Each row gives one with tiles of family sm90a, if there are any, and
// then one without them.
std::vector<KernelConfig> fitting_configs(const KernelSpec& spec, const Arch& arch) {
  std::vector<KernelConfig> result;
  for (const Sm80Row& row : rows_of(spec.head_dim)) {
    if (!rejection_reason(row, spec, arch).empty()) continue;
    const KernelConfig config = config_of(row, spec, arch);
    if (const KernelConfig better = with_sm90a_tiles(config, spec, arch); better != config)
      result.push_back(better);
    result.push_back(config);
  }
  // Products of 8 bits have no prefill kernel of family sm80.
  std::erase_if(result, [&](const KernelConfig& config) { return !is_legal(config, spec, arch); });
  return result;
}

// Returns the neighbours of a head_dim that is not among `head_dims`, which are in ascending order.
std::vector<int> nearest(int head_dim, const std::vector<int>& head_dims) {
  const auto above = std::upper_bound(head_dims.begin(), head_dims.end(), head_dim);
  std::vector<int> result;
  if (above != head_dims.begin()) result.push_back(*(above - 1));
  if (above != head_dims.end()) result.push_back(*above);
  return result;
}

// Returns the head_dims that have a config on an arch.
std::vector<int> head_dims_on(const Arch& arch, KernelSpec spec) {
  std::vector<int> result;
  for (const int head_dim : supported_head_dims()) {
    spec.head_dim = head_dim;
    if (!fitting_configs(spec, arch).empty()) result.push_back(head_dim);
  }
  return result;
}

// Returns the archs that have a config for a spec.
std::vector<std::string> archs_of(const KernelSpec& spec) {
  std::vector<std::string> names;
  for (const Arch& arch : archs())
    if (!fitting_configs(spec, arch).empty()) names.push_back(arch.name);
  return names;
}

// The message names what the last row of a head_dim lacks, because that row needs the least.
std::string no_config_message(const KernelSpec& spec, const Arch& arch) {
  const std::vector<int> others = nearest(spec.head_dim, head_dims_on(arch, spec));
  return fmt::format(
      "head_dim = {} has no kernel config on {} ({}); nearest there: {}; archs for {}: {}",
      spec.head_dim, arch.name, rejection_reason(rows_of(spec.head_dim).back(), spec, arch),
      others.empty() ? "none" : fmt::format("{}", fmt::join(others, " and ")), spec.head_dim,
      fmt::join(archs_of(spec), ", "));
}

// Returns advice for a model whose head_dim is smaller than a supported one.
std::string padding_advice(int head_dim, int supported) {
  if (head_dim < 1 || supported < head_dim) return "";
  return fmt::format(
      " (with {}, pad q, k and v with zeros, and give the model's rotary_dim and scale = 1 / "
      "sqrt({}))",
      supported, head_dim);
}

}  // namespace

std::vector<int> supported_head_dims() {
  std::vector<int> result;
  for (const Sm80Row& row : sm80_rows()) result.push_back(row.head_dim);
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

void validate_head_dim(int head_dim) {
  const std::vector<int> supported = supported_head_dims();
  if (std::binary_search(supported.begin(), supported.end(), head_dim)) return;
  const std::vector<int> next = nearest(head_dim, supported);
  throw SpecError(fmt::format("head_dim = {} has no kernel config; nearest: {}{}; allowed are: {}",
                              head_dim, fmt::join(next, " and "),
                              padding_advice(head_dim, next.back()), fmt::join(supported, ", ")));
}

std::vector<KernelConfig> configs(const KernelSpec& spec, const Arch& arch) {
  validate_head_dim(spec.head_dim);
  if (spec.compute == Compute::kFloat8 && !has_family(arch, Family::kSm90a))
    throw SpecError(
        fmt::format(R"(compute = "float8" on {}; products of 8 bits need a GPU of family sm90a )"
                    R"((Hopper): give compute = "dtype" there)",
                    arch.name));
  std::vector<KernelConfig> result = fitting_configs(spec, arch);
  if (result.empty()) throw SpecError(no_config_message(spec, arch));
  return result;
}

}  // namespace lazyrope
