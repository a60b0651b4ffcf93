#include "codegen/kernel_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "codegen/error.h"
#include "templates/abi/attend_tma.h"
#include "templates/abi/step.h"

namespace lazyrope {
namespace {

constexpr int kRunSlots = 16;  // keys that are fetched by one page number
constexpr int kWarpThreads = 32;
constexpr int kCopyBytes = 16;
constexpr int kMaxThreads = 1024;
constexpr int kRegistersPerLane = kRegistersPerSm / 128;  // of the warps of one of four schedulers
constexpr int kElementBytes = 2;
constexpr int kFlagBytes = 16;
constexpr int kHopperWarpsM = 8;  // where warps divide many rows

// templates/tile/shared_tile.cuh: chunks of a row, the zero one behind it included.
int row_chunks(int head_dim, int element_bytes) { return (head_dim + 15) / 16 * element_bytes; }

int row_bytes(int head_dim, int element_bytes) {
  const int chunks = row_chunks(head_dim, element_bytes);
  return (chunks % 8 == 0 || chunks % 2 == 1 ? chunks : chunks + 1) * kCopyBytes;
}

// pipeline/block_table.cuh: infos of 16 bytes, runs of 8, and where the search stands.
int table_bytes(int warp_n, int windows = 2) {
  const int runs = warp_n / kRunSlots;
  const int capacity = windows * (kWarpThreads / runs);
  return capacity * (16 + runs * 8) + 16;
}

struct Row {
  int head_dim;
  int shared_per_sm;  // KiB; the row is meant for SMs with at least this much
  KernelConfig config;
};

// Configs of the sm80 family, best first for each head_dim. A decode CTA streams KV: what counts
// is the bytes under way on an SM, stages - 1 tiles in each of its rings. A prefill CTA computes:
// what counts is 32 rows a warp (a warp reads each block from shared memory once for all its rows)
// and two CTAs on an SM, one's softmax under the other's products.
const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {64, 228, {{1, 2, 16, 16, 16, 6, 4}, {4, 1, 32, 64, 64, 2, 2}}},
      {64, 160, {{1, 4, 16, 16, 16, 8, 2}, {4, 1, 32, 64, 64, 2, 2}}},
      {64, 100, {{1, 4, 16, 16, 16, 4, 2}, {4, 1, 32, 64, 64, 2, 1}}},
      {72, 228, {{1, 2, 16, 16, 16, 6, 4}, {4, 1, 32, 128, 64, 2, 2}}},
      {72, 160, {{1, 4, 16, 16, 16, 5, 2}, {4, 1, 32, 64, 64, 2, 2}}},
      {72, 100, {{1, 4, 16, 16, 16, 7, 1}, {4, 1, 32, 64, 64, 2, 1}}},
      {80, 228, {{1, 2, 16, 16, 16, 6, 4}, {4, 1, 32, 64, 64, 2, 2}}},
      {80, 160, {{1, 4, 16, 16, 16, 5, 2}, {4, 1, 32, 64, 64, 2, 2}}},
      {80, 100, {{1, 4, 16, 16, 16, 7, 1}, {4, 1, 32, 64, 64, 2, 1}}},
      {96, 228, {{1, 2, 16, 16, 16, 6, 4}, {4, 1, 32, 64, 64, 2, 2}}},
      {96, 160, {{1, 4, 16, 16, 16, 4, 2}, {4, 1, 32, 32, 32, 2, 2}}},
      {96, 100, {{1, 4, 16, 16, 16, 5, 1}, {4, 1, 32, 64, 64, 2, 1}}},
      {112, 228, {{1, 2, 16, 16, 16, 5, 4}, {4, 1, 32, 64, 64, 2, 2}}},
      {112, 160, {{1, 4, 16, 16, 16, 3, 2}, {4, 1, 32, 32, 32, 2, 2}}},
      {112, 100, {{1, 4, 16, 16, 16, 4, 1}, {4, 1, 32, 32, 32, 2, 1}}},
      {128, 228, {{1, 4, 16, 16, 16, 5, 2}, {4, 1, 32, 64, 64, 2, 2}}},
      {128, 160, {{1, 4, 16, 16, 16, 3, 2}, {4, 1, 32, 32, 32, 2, 2}}},
      {128, 100, {{1, 4, 16, 16, 16, 4, 1}, {4, 1, 32, 32, 32, 2, 1}}},
      {160, 228, {{1, 2, 16, 16, 16, 5, 3}, {8, 1, 16, 64, 64, 2, 1}}},
      {160, 160, {{1, 2, 16, 16, 16, 5, 2}, {8, 1, 16, 64, 64, 2, 1}}},
      {160, 100, {{1, 4, 16, 16, 16, 3, 1}, {4, 1, 16, 32, 32, 2, 1}}},
      {192, 228, {{1, 2, 16, 16, 16, 4, 3}, {8, 1, 16, 64, 64, 2, 1}}},
      {192, 160, {{1, 2, 16, 16, 16, 4, 2}, {8, 1, 16, 64, 64, 2, 1}}},
      {192, 100, {{1, 2, 16, 16, 16, 4, 1}, {4, 1, 16, 32, 32, 2, 1}}},
      {256, 228, {{1, 2, 16, 16, 16, 5, 2}, {8, 1, 16, 64, 64, 2, 1}}},
      {256, 160, {{1, 2, 16, 16, 16, 3, 2}, {8, 1, 16, 32, 32, 2, 1}}},
      {256, 100, {{1, 2, 16, 16, 16, 3, 1}, {4, 1, 16, 32, 32, 2, 1}}},
  };
  return table;
}

// What family sm90a has where arch and spec have what it needs. Prefill: 64 rows a warpgroup, and
// as many keys as leave room for two blocks under way, or four where they are small. Decode: as
// many bytes under way as there is room for, and rows of 256 bytes, of two heads where one's are
// shorter: of one warpgroup, or where each has more than eight rows, one each.
struct HopperRow {
  int head_dim;
  bool caps;  // leaves registers for softcap
  TileConfig KernelConfig::* tile;
  TileConfig config;
};

const std::vector<HopperRow>& hopper_rows() {
  static const std::vector<HopperRow> table = {
      {64, true, &KernelConfig::decode, {1, 4, 16, 16, 16, 3, 2, Family::kSm90a, 2}},
      {64, true, &KernelConfig::decode, {2, 4, 16, 16, 16, 3, 2, Family::kSm90a, 2}},
      {64, true, &KernelConfig::decode, {1, 4, 16, 16, 16, 6, 2, Family::kSm90a}},
      {64, true, &KernelConfig::prefill, {8, 1, 16, 128, 128, 4, 1, Family::kSm90a}},
      {128, true, &KernelConfig::decode, {1, 4, 16, 16, 16, 3, 2, Family::kSm90a}},
      {128, false, &KernelConfig::prefill, {8, 1, 16, 128, 128, 2, 1, Family::kSm90a}},
      {128, true, &KernelConfig::prefill, {8, 1, 16, 64, 64, 4, 1, Family::kSm90a}},
      {96, true, &KernelConfig::prefill, {8, 1, 16, 128, 128, 3, 1, Family::kSm90a}},
      {192, true, &KernelConfig::decode, {1, 4, 16, 16, 16, 4, 1, Family::kSm90a}},
      {192, true, &KernelConfig::prefill, {8, 1, 16, 96, 96, 2, 1, Family::kSm90a}},
      {256, true, &KernelConfig::decode, {1, 4, 16, 16, 16, 3, 1, Family::kSm90a}},
      {256, true, &KernelConfig::prefill, {8, 1, 16, 64, 64, 2, 1, Family::kSm90a}},
  };
  return table;
}

// That family sm90a has kernels for. Keys and values of 8 bits are widened by the warps that turn
// many rows' queries.
std::vector<int> hopper_head_dims(bool has_many_rows, int kv_bytes) {
  if (kv_bytes == 1) return has_many_rows ? std::vector{64, 96, 128} : std::vector<int>{};
  return has_many_rows ? std::vector{64, 96, 128, 192, 256} : std::vector{64, 128, 192, 256};
}

// Checks a config of one attend kernel; errors name it and the member.
class TileConfigCheck {
 public:
  TileConfigCheck(std::string_view name, const TileConfig& config, const KernelSpec& spec)
      : name_(name),
        tile_(config),
        head_dim_(spec.head_dim),
        kv_bytes_(bytes_of(spec.pool_dtype())),
        has_odd_kv_heads_(spec.has_odd_kv_heads) {}

  void shape() const {
    one_of("heads", tile_.heads, allowed_heads());
    if (tile_.family == Family::kSm90a) return hopper_shape();
    at_least("warps_m", tile_.warps_m, 1);
    at_least("warps_n", tile_.warps_n, 1);
    at_least("ctas_per_sm", tile_.ctas_per_sm, 1);
    one_of("warp_m", tile_.warp_m, {16, 32, 48, 64});
    at_most("ctas_per_sm", tile_.ctas_per_sm, 32);
    multiple_of("mma_n", tile_.mma_n, product_keys());
    one_of("warp_n", tile_.warp_n, {16, 32, 64, 128, 256});
    if (tile_.warp_n % tile_.mma_n != 0)
      refuse("mma_n", tile_.mma_n, fmt::format("it must divide warp_n = {}", tile_.warp_n));
    if (tile_.warps_m > 1 && tile_.warps_n > 1)
      refuse("warps_n", tile_.warps_n,
             fmt::format("with warps_m = {} it must be 1", tile_.warps_m));
    if (!tile_.divides_rows() && tile_.mma_n != tile_.warp_n)
      refuse("mma_n", tile_.mma_n,
             fmt::format("with warps_m = 1 it must be warp_n = {}", tile_.warp_n));
    if (tile_.warps_n * kWarpThreads > kMaxThreads)
      refuse("warps_n", tile_.warps_n, "a CTA has at max 32 warps");
    one_of("warps_m", tile_.warps_m, ring_warps());
    at_least("stages", tile_.stages, 2);
    if (const int max = max_stages(); tile_.stages > max)
      refuse("stages", tile_.stages,
             fmt::format("with warp_n = {} it must be at max {}", tile_.warp_n, max));
  }

  void fits(const Arch& arch) const {
    if (!has_family(arch, tile_.family))
      throw SpecError(fmt::format("kernel config: {}.family = {}; {} has none but {}", name_,
                                  to_string(tile_.family), arch.name, to_string(arch.family)));
    const int bytes = tile_.shared_bytes(head_dim_, kv_bytes_);
    if (bytes > arch.shared_per_block)
      throw SpecError(
          fmt::format("kernel config: {} needs {} bytes of shared memory; a CTA has {} on {}",
                      name_, bytes, arch.shared_per_block, arch.name));
    if (tile_.ctas_per_sm * (bytes + kReservedSharedPerBlock) > arch.shared_per_sm)
      refuse("ctas_per_sm", tile_.ctas_per_sm,
             fmt::format("each CTA needs {} bytes of the {} that an SM of {} has", bytes,
                         arch.shared_per_sm, arch.name));
  }

 private:
  // templates/family/sm90a/prefill_kernel.cuh.
  void hopper_shape() const {
    // Of few rows one, or one for each head.
    one_of("warps_m", tile_.warps_m,
           tile_.heads == 2 ? std::vector{1, 2} : std::vector{1, kHopperWarpsM});
    one_of("warps_n", tile_.warps_n, {tile_.warps_m == kHopperWarpsM ? 1 : 4});
    if (tile_.divides_rows()) {
      one_of("warp_m", tile_.warp_m, {16});
      // Of 8 bits each of four warps widens whole runs.
      one_of("warp_n", tile_.warp_n,
             kv_bytes_ == 1 ? std::vector{64, 128} : std::vector{64, 96, 128});
      one_of("ctas_per_sm", tile_.ctas_per_sm, {1});
    } else {
      one_of("warp_m", tile_.warp_m, {16, 32});
      one_of("warp_n", tile_.warp_n, {16});
      one_of("ctas_per_sm", tile_.ctas_per_sm, {1, 2});
    }
    one_of("mma_n", tile_.mma_n, {tile_.warp_n});
    at_least("stages", tile_.stages, 2);
    at_most("stages", tile_.stages, 8);
    const std::vector<int> head_dims = hopper_head_dims(tile_.divides_rows(), kv_bytes_);
    if (std::ranges::find(head_dims, head_dim_) == head_dims.end())
      throw SpecError(fmt::format(
          "kernel config: {}.family = sm90a; for a pool of {} bits it is for {}", name_,
          8 * kv_bytes_,
          head_dims.empty() ? "prefill alone"
                            : fmt::format("head_dim = {}", fmt::join(head_dims, ", "))));
  }

  std::vector<int> allowed_heads() const {
    const bool may_pair = tile_.family == Family::kSm90a && !tile_.divides_rows() &&
                          head_dim_ == 64 && !has_odd_kv_heads_;
    return may_pair ? std::vector{1, 2} : std::vector{1};
  }

  // That a product takes at once: tile/warp_product.cuh and tile/fp8_product.cuh.
  int product_keys() const { return kv_bytes_ == 2 || tile_.divides_rows() ? 16 : 32; }

  // The block table is filled a window of blocks at a time: two tiles a block where a stage is a
  // tile, else half a window ahead.
  int max_stages() const {
    const int window = kWarpThreads * kRunSlots / tile_.warp_n;
    return tile_.divides_rows() ? window / 2 + 1 : window;
  }

  // Warps that load one ring together copy a row at least at once.
  std::vector<int> ring_warps() const {
    std::vector<int> result;
    for (int warps = 1; warps * kWarpThreads <= kMaxThreads; ++warps)
      if (warps * kWarpThreads >= row_chunks(head_dim_, kv_bytes_)) result.push_back(warps);
    return result;
  }

  [[noreturn]] void refuse(std::string_view member, int value, const std::string& why) const {
    throw SpecError(fmt::format("kernel config: {}.{} = {}; {}", name_, member, value, why));
  }
  void at_least(std::string_view member, int value, int least) const {
    if (value < least) refuse(member, value, fmt::format("it must be at least {}", least));
  }
  void at_most(std::string_view member, int value, int max) const {
    if (value > max) refuse(member, value, fmt::format("it must be at max {}", max));
  }
  void multiple_of(std::string_view member, int value, int unit) const {
    if (value < unit || value % unit != 0)
      refuse(member, value, fmt::format("it must be a multiple of {}", unit));
  }
  void one_of(std::string_view member, int value, const std::vector<int>& allowed) const {
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end())
      refuse(member, value, fmt::format("allowed are {}", fmt::join(allowed, ", ")));
  }

  std::string_view name_;
  const TileConfig& tile_;
  int head_dim_;
  int kv_bytes_;
  bool has_odd_kv_heads_;
};

// As many CTAs on an SM as shared memory has room for, at max `max`.
int ctas_that_fit(const TileConfig& config, const KernelSpec& spec, const Arch& arch, int max) {
  const int bytes = config.shared_bytes(spec.head_dim, bytes_of(spec.pool_dtype()));
  return std::clamp(arch.shared_per_sm / (bytes + kReservedSharedPerBlock), 1, max);
}

// For its CTAs on an SM.
bool has_room(const TileConfig& config, const KernelSpec& spec, const Arch& arch) {
  const int bytes = config.shared_bytes(spec.head_dim, bytes_of(spec.pool_dtype()));
  return bytes <= arch.shared_per_block &&
         config.ctas_per_sm * (bytes + kReservedSharedPerBlock) <= arch.shared_per_sm;
}

// A block of 8-bit keys is widened before it is used: longer blocks, and more rows that use them,
// where they fit.
TileConfig fp8_prefill(TileConfig config, const KernelSpec& spec, const Arch& arch) {
  TileConfig longer = config;
  longer.warp_n = 128;
  longer.ctas_per_sm = 1;
  if (spec.head_dim <= 80) longer.warps_m = 8;
  const bool gains = spec.head_dim <= 80 || spec.head_dim == 160;
  if (gains && longer.shared_bytes(spec.head_dim, 1) <= arch.shared_per_block) return longer;
  // Their scale is one register more, which 32 rows of 128 columns and 64 scores each do not leave.
  if (config.warp_m == 32 && spec.head_dim >= 128) config.mma_n = 32;
  return config;
}

// Keys of half the bytes: twice as many in a block, and as many tiles as there is room for.
TileConfig fp8_decode(TileConfig config, const KernelSpec& spec, const Arch& arch) {
  config.warp_n = config.mma_n = 32;
  constexpr int kMost = 8;
  config.stages = kMost;
  while (config.stages > 2 && !has_room(config, spec, arch)) --config.stages;
  return config;
}

// KV heads whose keys are read together: rows of less than 256 bytes make poor use of memory.
int heads_read_together(const KernelSpec& spec) {
  return spec.head_dim * bytes_of(spec.pool_dtype()) < 256 ? 2 : 1;
}

// Where the heads of one token are more rows than a decode tile has: warps divide the rows, as in
// prefill, but no more than there are, and several CTAs on an SM hide each other's waiting.
TileConfig wide_decode(const TileConfig& prefill, const KernelSpec& spec, const Arch& arch) {
  TileConfig config = prefill;
  config.warps_m = (spec.group_size + 15) / 16;
  config.warp_m = 16;
  if (config.block_m() >= prefill.block_m()) return prefill;
  const int registers = spec.head_dim / 2 + 80;  // accumulators of 16 rows, and the rest
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

// With parts of about so many tokens, in blocks of all of a CTA's warps, where the spec wants it.
KernelConfig with_fixed_splits(KernelConfig config, const KernelSpec& spec) {
  constexpr int kSplitTokens = 1024;
  if (spec.batch_invariant)
    config.fixed_split_blocks = std::max(kSplitTokens / config.decode.block_n(), 1);
  return config;
}

// A row's config, as the spec wants it.
KernelConfig config_of(const Row& row, const KernelSpec& spec, const Arch& arch) {
  KernelConfig config = row.config;
  config.heads_per_work_tile = heads_read_together(spec);
  if (spec.has_fp8_pool()) {
    config.decode = fp8_decode(config.decode, spec, arch);
    config.prefill = fp8_prefill(config.prefill, spec, arch);
  }
  if (spec.group_size > config.decode.block_m())
    config.decode = wide_decode(config.prefill, spec, arch);
  return with_fixed_splits(config, spec);
}

// What validate() says of a config; empty where it is legal.
std::string validation_error(const KernelConfig& config, const KernelSpec& spec, const Arch& arch) {
  try {
    validate(config, spec, arch);
    return "";
  } catch (const SpecError& error) {
    return error.what();
  }
}

// Why a row's config is none for an arch; empty where it is one.
std::string rejection_reason(const Row& row, const KernelSpec& spec, const Arch& arch) {
  if (const int needed = row.shared_per_sm * 1024; needed > arch.shared_per_sm)
    return fmt::format("its smallest is for SMs with {} bytes of shared memory; {} has {}", needed,
                       arch.name, arch.shared_per_sm);
  return validation_error(config_of(row, spec, arch), spec, arch);
}

std::vector<Row> rows_of(int head_dim) {
  std::vector<Row> result = rows();
  std::erase_if(result, [&](const Row& row) { return row.head_dim != head_dim; });
  return result;
}

// The same config with what family sm90a has of it. A decode config whose warps divide rows is one
// for more rows than that family's has.
KernelConfig on_hopper(KernelConfig config, const KernelSpec& spec, const Arch& arch) {
  for (const HopperRow& row : hopper_rows()) {
    const TileConfig& before = config.*row.tile;
    const bool serves_tokens =
        row.config.divides_rows() || spec.group_size <= row.config.rows_per_head();
    if (row.head_dim != spec.head_dim || (spec.softcap > 0.0 && !row.caps) || !serves_tokens ||
        before.family == Family::kSm90a || before.divides_rows() != row.config.divides_rows())
      continue;
    KernelConfig changed = config;
    changed.*row.tile = row.config;
    if (row.tile == &KernelConfig::decode) changed.min_split_blocks = 1;  // measured on an H200
    changed = with_fixed_splits(changed, spec);
    if (is_legal(changed, spec, arch)) config = changed;
  }
  return config;
}

std::vector<KernelConfig> fitting_configs(const KernelSpec& spec, const Arch& arch) {
  std::vector<KernelConfig> result;
  for (const Row& row : rows_of(spec.head_dim)) {
    if (!rejection_reason(row, spec, arch).empty()) continue;
    const KernelConfig config = config_of(row, spec, arch);
    if (const KernelConfig better = on_hopper(config, spec, arch); better != config)
      result.push_back(better);
    result.push_back(config);
  }
  return result;
}

// Of ascending head_dims the last before one that is not among them, and the first behind it.
std::vector<int> nearest(int head_dim, const std::vector<int>& head_dims) {
  const auto above = std::upper_bound(head_dims.begin(), head_dims.end(), head_dim);
  std::vector<int> result;
  if (above != head_dims.begin()) result.push_back(*(above - 1));
  if (above != head_dims.end()) result.push_back(*above);
  return result;
}

std::vector<int> head_dims_on(const Arch& arch, KernelSpec spec) {
  std::vector<int> result;
  for (const int head_dim : supported_head_dims()) {
    spec.head_dim = head_dim;
    if (!fitting_configs(spec, arch).empty()) result.push_back(head_dim);
  }
  return result;
}

std::vector<std::string> archs_of(const KernelSpec& spec) {
  std::vector<std::string> names;
  for (const Arch& arch : archs())
    if (!fitting_configs(spec, arch).empty()) names.push_back(arch.name);
  return names;
}

// The last row of a head_dim asks the least.
std::string no_config_message(const KernelSpec& spec, const Arch& arch) {
  const std::vector<int> others = nearest(spec.head_dim, head_dims_on(arch, spec));
  return fmt::format(
      "head_dim = {} has no kernel config on {} ({}); nearest there: {}; archs for {}: {}",
      spec.head_dim, arch.name, rejection_reason(rows_of(spec.head_dim).back(), spec, arch),
      others.empty() ? "none" : fmt::format("{}", fmt::join(others, " and ")), spec.head_dim,
      fmt::join(archs_of(spec), ", "));
}

// How a model with fewer columns uses a supported head_dim.
std::string padding(int head_dim, int supported) {
  if (head_dim < 1 || supported < head_dim) return "";
  return fmt::format(
      " (with {}, pad q, k and v with zeros, and give the model's rotary_dim and scale = 1 / "
      "sqrt({}))",
      supported, head_dim);
}

// templates/family/sm90a/column_consumer.cuh.
int hopper_own_bytes(const TileConfig& config) {
  return config.block_m() * config.block_n() * kElementBytes + 9 * config.block_m() * 4 +
         config.warps_m * kFlagBytes;
}

// templates/family/sm90a/tile_memory.cuh.
int hopper_shared_bytes(const TileConfig& config, int head_dim, int kv_bytes) {
  const int windows = table_windows(config.divides_rows(), head_dim);
  constexpr int kFirstBlockBytes = 16;
  const int row = head_dim * config.heads * kElementBytes;
  const int rotated_at_once = rotated_stages(config.divides_rows(), head_dim, config.block_m());
  const int rotated = rotated_at_once * config.block_m() * head_dim * kElementBytes;
  const bool consumers = consumers_rotate(config.divides_rows(), head_dim);
  const int original = consumers ? 0 : config.block_m() * row_bytes(head_dim, kElementBytes);
  const int num_rotations = rotation_stages(config.divides_rows(), head_dim);
  const int rotations = num_rotations * rotation_bytes(head_dim);
  const int query_stages = num_rotations + (consumers ? 0 : rotated_at_once);
  const int saved = consumers ? config.warps_m / 4 : 0;
  const int stored = kv_bytes == 1 ? 2 * config.stages : 0;
  const int issue_order = copy_warps(config.divides_rows(), head_dim) == 2 ? kIssueOrderBytes : 0;
  const int barriers =
      (2 * config.stages + stored + query_stages + saved + kWorkTileStages + windows) * 16;
  return 2 * config.stages * config.block_n() * row + rotated + original +
         ones_bytes(config.divides_rows(), head_dim) + rotations +
         table_bytes(config.block_n(), windows) +
         kWorkTileStages * (config.block_m() * 4 + static_cast<int>(sizeof(WorkTile))) + barriers +
         issue_order + kFlagBytes + kFirstBlockBytes +
         (config.divides_rows() ? 0 : hopper_own_bytes(config));
}

}  // namespace

int TileConfig::threads(int head_dim) const {
  const int helpers = family == Family::kSm90a ? producer_warps(divides_rows(), head_dim) : 0;
  return (warps_m * warps_n + helpers) * kWarpThreads;
}

int TileConfig::shared_bytes(int head_dim, int kv_bytes) const {
  if (family == Family::kSm90a) return hopper_shared_bytes(*this, head_dim, kv_bytes);
  const int row = row_bytes(head_dim, kElementBytes);
  const int tile = warp_n * row_bytes(head_dim, kv_bytes);
  const int record = partial_record_bytes(head_dim);
  const int work_tile = static_cast<int>(sizeof(WorkTile));
  const int fixed = block_m() * 4 + kFlagBytes;
  if (divides_rows()) {
    const int wide = kv_bytes == 1 ? 2 * warp_n * row : 0;
    return std::max(stages * 2 * tile + block_m() * row + wide, warps_m * 16 * record) +
           table_bytes(warp_n) + work_tile + fixed;
  }
  const int staged_tiles = (16 * record + tile - 1) / tile;
  return warps_n * std::max(stages, staged_tiles) * tile + (warps_n + 1) * warp_m * row +
         warps_n * table_bytes(warp_n) + 2 * work_tile + fixed;
}

int TileConfig::saved_query_bytes(int head_dim) const {
  const bool keeps = family == Family::kSm90a && consumers_rotate(divides_rows(), head_dim);
  return keeps ? block_m() * head_dim * kElementBytes : 0;
}

std::string describe(const TileConfig& config) {
  return fmt::format("{}{}x{} warps, {} rows x {} keys{}, {} stages, {}/SM",
                     config.family == Family::kSm90a ? "wgmma, " : "", config.warps_m,
                     config.warps_n, config.block_m(), config.block_n(),
                     config.heads > 1 ? fmt::format(" of {} heads", config.heads) : "",
                     config.stages, config.ctas_per_sm);
}

std::string describe(const KernelConfig& config) {
  return fmt::format("decode {}; prefill {}", describe(config.decode), describe(config.prefill));
}

std::vector<int> supported_head_dims() {
  std::vector<int> result;
  for (const Row& row : rows()) result.push_back(row.head_dim);
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

void validate(const KernelConfig& config, const KernelSpec& spec, const Arch& arch) {
  for (const auto& [name, attend] :
       {std::pair{"decode", config.decode}, {"prefill", config.prefill}}) {
    const TileConfigCheck check(name, attend, spec);
    check.shape();
    check.fits(arch);
  }
  if (config.min_split_blocks < 1)
    throw SpecError(fmt::format("kernel config: min_split_blocks = {}; it must be at least 1",
                                config.min_split_blocks));
  if (config.heads_per_work_tile < 1)
    throw SpecError(fmt::format("kernel config: heads_per_work_tile = {}; it must be at least 1",
                                config.heads_per_work_tile));
  if (config.fixed_split_blocks < 0)
    throw SpecError(fmt::format(
        "kernel config: fixed_split_blocks = {}; it must be at least 1, or 0: parts are not fixed",
        config.fixed_split_blocks));
  if (spec.batch_invariant && config.fixed_split_blocks == 0)
    throw SpecError(
        "kernel config: fixed_split_blocks = 0; with batch_invariant it must be at least 1");
}

bool is_legal(const KernelConfig& config, const KernelSpec& spec, const Arch& arch) {
  return validation_error(config, spec, arch).empty();
}

void validate_head_dim(int head_dim) {
  const std::vector<int> supported = supported_head_dims();
  if (std::binary_search(supported.begin(), supported.end(), head_dim)) return;
  const std::vector<int> next = nearest(head_dim, supported);
  throw SpecError(fmt::format("head_dim = {} has no kernel config; nearest: {}{}; allowed are: {}",
                              head_dim, fmt::join(next, " and "), padding(head_dim, next.back()),
                              fmt::join(supported, ", ")));
}

std::vector<KernelConfig> configs(const KernelSpec& spec, const Arch& arch) {
  validate_head_dim(spec.head_dim);
  std::vector<KernelConfig> result = fitting_configs(spec, arch);
  if (result.empty()) throw SpecError(no_config_message(spec, arch));
  return result;
}

}  // namespace lazyrope
