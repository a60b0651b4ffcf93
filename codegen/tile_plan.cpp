#include "codegen/tile_plan.h"

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
constexpr int kHopperRowWarps = 8;  // where warps divide many rows

// templates/tile/shared_tile.cuh: chunks of a row, the zero one behind it included.
int row_chunks(int head_dim, int element_bytes) { return (head_dim + 15) / 16 * element_bytes; }

int row_bytes(int head_dim, int element_bytes) {
  const int chunks = row_chunks(head_dim, element_bytes);
  return (chunks % 8 == 0 || chunks % 2 == 1 ? chunks : chunks + 1) * kCopyBytes;
}

// pipeline/block_table.cuh: infos of 16 bytes, runs of 8, and where the search stands.
int table_bytes(int warp_keys, int windows = 2) {
  const int runs = warp_keys / kRunSlots;
  const int capacity = windows * (kWarpThreads / runs);
  return capacity * (16 + runs * 8) + 16;
}

struct Row {
  int head_dim;
  int shared_per_sm;  // KiB; the row is meant for SMs with at least this much
  TilePlan plan;
};

// Candidates of the sm80 family, best first for each head_dim. A decode CTA streams KV: what counts
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
  AttendPlan TilePlan::* part;
  AttendPlan plan;
};

const std::vector<HopperRow>& hopper_rows() {
  static const std::vector<HopperRow> table = {
      {64, true, &TilePlan::decode, {1, 4, 16, 16, 16, 3, 2, Family::kSm90a, 2}},
      {64, true, &TilePlan::decode, {2, 4, 16, 16, 16, 3, 2, Family::kSm90a, 2}},
      {64, true, &TilePlan::decode, {1, 4, 16, 16, 16, 6, 2, Family::kSm90a}},
      {64, true, &TilePlan::prefill, {8, 1, 16, 128, 128, 4, 1, Family::kSm90a}},
      {128, true, &TilePlan::decode, {1, 4, 16, 16, 16, 3, 2, Family::kSm90a}},
      {128, false, &TilePlan::prefill, {8, 1, 16, 128, 128, 2, 1, Family::kSm90a}},
      {128, true, &TilePlan::prefill, {8, 1, 16, 64, 64, 4, 1, Family::kSm90a}},
      {96, true, &TilePlan::prefill, {8, 1, 16, 128, 128, 3, 1, Family::kSm90a}},
      {192, true, &TilePlan::decode, {1, 4, 16, 16, 16, 4, 1, Family::kSm90a}},
      {192, true, &TilePlan::prefill, {8, 1, 16, 96, 96, 2, 1, Family::kSm90a}},
      {256, true, &TilePlan::decode, {1, 4, 16, 16, 16, 3, 1, Family::kSm90a}},
      {256, true, &TilePlan::prefill, {8, 1, 16, 64, 64, 2, 1, Family::kSm90a}},
  };
  return table;
}

// That family sm90a has kernels for. Keys and values of 8 bits are widened by the warps that turn
// many rows' queries.
std::vector<int> hopper_head_dims(bool has_many_rows, int kv_bytes) {
  if (kv_bytes == 1) return has_many_rows ? std::vector{64, 96, 128} : std::vector<int>{};
  return has_many_rows ? std::vector{64, 96, 128, 192, 256} : std::vector{64, 128, 192, 256};
}

// Checks a plan of one attend kernel; errors name it and the member.
class AttendPlanCheck {
 public:
  AttendPlanCheck(std::string_view name, const AttendPlan& plan, const KernelSpec& spec)
      : name_(name),
        plan_(plan),
        head_dim_(spec.head_dim),
        kv_bytes_(bytes_of(spec.pool_dtype())),
        has_odd_kv_heads_(spec.has_odd_kv_heads) {}

  void shape() const {
    one_of("heads", plan_.heads, allowed_heads());
    if (plan_.family == Family::kSm90a) return hopper_shape();
    at_least("row_warps", plan_.row_warps, 1);
    at_least("key_warps", plan_.key_warps, 1);
    at_least("ctas_per_sm", plan_.ctas_per_sm, 1);
    one_of("warp_rows", plan_.warp_rows, {16, 32, 48, 64});
    at_most("ctas_per_sm", plan_.ctas_per_sm, 32);
    multiple_of("step_keys", plan_.step_keys, product_keys());
    one_of("warp_keys", plan_.warp_keys, {16, 32, 64, 128, 256});
    if (plan_.warp_keys % plan_.step_keys != 0)
      refuse("step_keys", plan_.step_keys,
             fmt::format("it must divide warp_keys = {}", plan_.warp_keys));
    if (plan_.row_warps > 1 && plan_.key_warps > 1)
      refuse("key_warps", plan_.key_warps,
             fmt::format("with row_warps = {} it must be 1", plan_.row_warps));
    if (!plan_.divides_rows() && plan_.step_keys != plan_.warp_keys)
      refuse("step_keys", plan_.step_keys,
             fmt::format("with row_warps = 1 it must be warp_keys = {}", plan_.warp_keys));
    if (plan_.key_warps * kWarpThreads > kMaxThreads)
      refuse("key_warps", plan_.key_warps, "a CTA has at most 32 warps");
    one_of("row_warps", plan_.row_warps, ring_warps());
    at_least("stages", plan_.stages, 2);
    if (const int most = most_stages(); plan_.stages > most)
      refuse("stages", plan_.stages,
             fmt::format("with warp_keys = {} it must be at most {}", plan_.warp_keys, most));
  }

  void fits(const Arch& arch) const {
    if (!has_family(arch, plan_.family))
      throw SpecError(fmt::format("tile plan: {}.family = {}; {} has none but {}", name_,
                                  to_string(plan_.family), arch.name, to_string(arch.family)));
    const int bytes = plan_.shared_bytes(head_dim_, kv_bytes_);
    if (bytes > arch.shared_per_block)
      throw SpecError(
          fmt::format("tile plan: {} needs {} bytes of shared memory; a CTA has {} on {}", name_,
                      bytes, arch.shared_per_block, arch.name));
    if (plan_.ctas_per_sm * (bytes + kReservedSharedPerBlock) > arch.shared_per_sm)
      refuse("ctas_per_sm", plan_.ctas_per_sm,
             fmt::format("each CTA needs {} bytes of the {} that an SM of {} has", bytes,
                         arch.shared_per_sm, arch.name));
  }

 private:
  // templates/family/sm90a/prefill_kernel.cuh.
  void hopper_shape() const {
    // Of few rows one, or one for each head.
    one_of("row_warps", plan_.row_warps,
           plan_.heads == 2 ? std::vector{1, 2} : std::vector{1, kHopperRowWarps});
    one_of("key_warps", plan_.key_warps, {plan_.row_warps == kHopperRowWarps ? 1 : 4});
    if (plan_.divides_rows()) {
      one_of("warp_rows", plan_.warp_rows, {16});
      // Of 8 bits each of four warps widens whole runs.
      one_of("warp_keys", plan_.warp_keys,
             kv_bytes_ == 1 ? std::vector{64, 128} : std::vector{64, 96, 128});
      one_of("ctas_per_sm", plan_.ctas_per_sm, {1});
    } else {
      one_of("warp_rows", plan_.warp_rows, {16, 32});
      one_of("warp_keys", plan_.warp_keys, {16});
      one_of("ctas_per_sm", plan_.ctas_per_sm, {1, 2});
    }
    one_of("step_keys", plan_.step_keys, {plan_.warp_keys});
    at_least("stages", plan_.stages, 2);
    at_most("stages", plan_.stages, 8);
    const std::vector<int> head_dims = hopper_head_dims(plan_.divides_rows(), kv_bytes_);
    if (std::ranges::find(head_dims, head_dim_) == head_dims.end())
      throw SpecError(fmt::format(
          "tile plan: {}.family = sm90a; for a pool of {} bits it is for {}", name_, 8 * kv_bytes_,
          head_dims.empty() ? "prefill alone"
                            : fmt::format("head_dim = {}", fmt::join(head_dims, ", "))));
  }

  std::vector<int> allowed_heads() const {
    const bool may_pair = plan_.family == Family::kSm90a && !plan_.divides_rows() &&
                          head_dim_ == 64 && !has_odd_kv_heads_;
    return may_pair ? std::vector{1, 2} : std::vector{1};
  }

  // That a product takes at once: tile/warp_product.cuh and tile/fp8_product.cuh.
  int product_keys() const { return kv_bytes_ == 2 || plan_.divides_rows() ? 16 : 32; }

  // The block table is filled a window of blocks at a time: two tiles a block where a stage is a
  // tile, else half a window ahead.
  int most_stages() const {
    const int window = kWarpThreads * kRunSlots / plan_.warp_keys;
    return plan_.divides_rows() ? window / 2 + 1 : window;
  }

  // Warps that load one ring together copy a row at least at once.
  std::vector<int> ring_warps() const {
    std::vector<int> result;
    for (int warps = 1; warps * kWarpThreads <= kMaxThreads; ++warps)
      if (warps * kWarpThreads >= row_chunks(head_dim_, kv_bytes_)) result.push_back(warps);
    return result;
  }

  [[noreturn]] void refuse(std::string_view member, int value, const std::string& why) const {
    throw SpecError(fmt::format("tile plan: {}.{} = {}; {}", name_, member, value, why));
  }
  void at_least(std::string_view member, int value, int least) const {
    if (value < least) refuse(member, value, fmt::format("it must be at least {}", least));
  }
  void at_most(std::string_view member, int value, int most) const {
    if (value > most) refuse(member, value, fmt::format("it must be at most {}", most));
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
  const AttendPlan& plan_;
  int head_dim_;
  int kv_bytes_;
  bool has_odd_kv_heads_;
};

// As many CTAs on an SM as shared memory has room for, at most `most`.
int ctas_that_fit(const AttendPlan& plan, const KernelSpec& spec, const Arch& arch, int most) {
  const int bytes = plan.shared_bytes(spec.head_dim, bytes_of(spec.pool_dtype()));
  return std::clamp(arch.shared_per_sm / (bytes + kReservedSharedPerBlock), 1, most);
}

// For its CTAs on an SM.
bool has_room(const AttendPlan& plan, const KernelSpec& spec, const Arch& arch) {
  const int bytes = plan.shared_bytes(spec.head_dim, bytes_of(spec.pool_dtype()));
  return bytes <= arch.shared_per_block &&
         plan.ctas_per_sm * (bytes + kReservedSharedPerBlock) <= arch.shared_per_sm;
}

// A block of 8-bit keys is widened before it is used: longer blocks, and more rows that use them,
// where they fit.
AttendPlan fp8_prefill(AttendPlan plan, const KernelSpec& spec, const Arch& arch) {
  AttendPlan longer = plan;
  longer.warp_keys = 128;
  longer.ctas_per_sm = 1;
  if (spec.head_dim <= 80) longer.row_warps = 8;
  const bool gains = spec.head_dim <= 80 || spec.head_dim == 160;
  if (gains && longer.shared_bytes(spec.head_dim, 1) <= arch.shared_per_block) return longer;
  // Their scale is one register more, which 32 rows of 128 columns and 64 scores each do not leave.
  if (plan.warp_rows == 32 && spec.head_dim >= 128) plan.step_keys = 32;
  return plan;
}

// Keys of half the bytes: twice as many in a block, and as many tiles as there is room for.
AttendPlan fp8_decode(AttendPlan plan, const KernelSpec& spec, const Arch& arch) {
  plan.warp_keys = plan.step_keys = 32;
  constexpr int kMost = 8;
  plan.stages = kMost;
  while (plan.stages > 2 && !has_room(plan, spec, arch)) --plan.stages;
  return plan;
}

// KV heads whose keys are read together: rows of less than 256 bytes make poor use of memory.
int heads_read_together(const KernelSpec& spec) {
  return spec.head_dim * bytes_of(spec.pool_dtype()) < 256 ? 2 : 1;
}

// Where the heads of one token are more rows than a decode tile has: warps divide the rows, as in
// prefill, but no more than there are, and several CTAs on an SM hide each other's waiting.
AttendPlan wide_decode(const AttendPlan& prefill, const KernelSpec& spec, const Arch& arch) {
  AttendPlan plan = prefill;
  plan.row_warps = (spec.group_size + 15) / 16;
  plan.warp_rows = 16;
  if (plan.rows() >= prefill.rows()) return prefill;
  const int registers = spec.head_dim / 2 + 80;  // accumulators of 16 rows, and the rest
  const auto has_registers = [&](int ctas) {
    const int warps_per_scheduler = (ctas * plan.row_warps + 3) / 4;
    return registers * warps_per_scheduler <= kRegistersPerLane;
  };
  plan.ctas_per_sm = ctas_that_fit(plan, spec, arch,
                                   has_registers(3)   ? 3
                                   : has_registers(2) ? 2
                                                      : 1);
  return plan;
}

// With parts of about so many tokens, in blocks of all of a CTA's warps, where the spec wants it.
TilePlan with_fixed_parts(TilePlan plan, const KernelSpec& spec) {
  constexpr int kPartTokens = 1024;
  if (spec.batch_invariant)
    plan.fixed_split_blocks = std::max(kPartTokens / plan.decode.block_keys(), 1);
  return plan;
}

// A row's plan, as the spec wants it.
TilePlan plan_of(const Row& row, const KernelSpec& spec, const Arch& arch) {
  TilePlan plan = row.plan;
  plan.item_heads = heads_read_together(spec);
  if (spec.has_fp8_pool()) {
    plan.decode = fp8_decode(plan.decode, spec, arch);
    plan.prefill = fp8_prefill(plan.prefill, spec, arch);
  }
  if (spec.group_size > plan.decode.rows()) plan.decode = wide_decode(plan.prefill, spec, arch);
  return with_fixed_parts(plan, spec);
}

// What validate() says of a plan; empty where it is legal.
std::string fault(const TilePlan& plan, const KernelSpec& spec, const Arch& arch) {
  try {
    validate(plan, spec, arch);
    return "";
  } catch (const SpecError& error) {
    return error.what();
  }
}

// Why a row's plan is none for an arch; empty where it is one.
std::string obstacle(const Row& row, const KernelSpec& spec, const Arch& arch) {
  if (const int needed = row.shared_per_sm * 1024; needed > arch.shared_per_sm)
    return fmt::format("its smallest is for SMs with {} bytes of shared memory; {} has {}", needed,
                       arch.name, arch.shared_per_sm);
  return fault(plan_of(row, spec, arch), spec, arch);
}

std::vector<Row> rows_of(int head_dim) {
  std::vector<Row> result = rows();
  std::erase_if(result, [&](const Row& row) { return row.head_dim != head_dim; });
  return result;
}

// The same plan with what family sm90a has of it. A decode plan whose warps divide rows is one for
// more rows than that family's has.
TilePlan on_hopper(TilePlan plan, const KernelSpec& spec, const Arch& arch) {
  for (const HopperRow& row : hopper_rows()) {
    const AttendPlan& before = plan.*row.part;
    const bool serves_tokens = row.plan.divides_rows() || spec.group_size <= row.plan.head_rows();
    if (row.head_dim != spec.head_dim || (spec.softcap > 0.0 && !row.caps) || !serves_tokens ||
        before.family == Family::kSm90a || before.divides_rows() != row.plan.divides_rows())
      continue;
    TilePlan changed = plan;
    changed.*row.part = row.plan;
    if (row.part == &TilePlan::decode) changed.min_split_blocks = 1;  // measured on an H200
    changed = with_fixed_parts(changed, spec);
    if (is_legal(changed, spec, arch)) plan = changed;
  }
  return plan;
}

std::vector<TilePlan> fitting(const KernelSpec& spec, const Arch& arch) {
  std::vector<TilePlan> result;
  for (const Row& row : rows_of(spec.head_dim)) {
    if (!obstacle(row, spec, arch).empty()) continue;
    const TilePlan plan = plan_of(row, spec, arch);
    if (const TilePlan better = on_hopper(plan, spec, arch); better != plan)
      result.push_back(better);
    result.push_back(plan);
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
  for (const int head_dim : planned_head_dims()) {
    spec.head_dim = head_dim;
    if (!fitting(spec, arch).empty()) result.push_back(head_dim);
  }
  return result;
}

std::vector<std::string> archs_of(const KernelSpec& spec) {
  std::vector<std::string> names;
  for (const Arch& arch : archs())
    if (!fitting(spec, arch).empty()) names.push_back(arch.name);
  return names;
}

// The last row of a head_dim asks the least.
std::string no_plan(const KernelSpec& spec, const Arch& arch) {
  const std::vector<int> others = nearest(spec.head_dim, head_dims_on(arch, spec));
  return fmt::format("head_dim = {} has no plan on {} ({}); nearest there: {}; archs for {}: {}",
                     spec.head_dim, arch.name, obstacle(rows_of(spec.head_dim).back(), spec, arch),
                     others.empty() ? "none" : fmt::format("{}", fmt::join(others, " and ")),
                     spec.head_dim, fmt::join(archs_of(spec), ", "));
}

// How a model with fewer columns uses a planned head_dim.
std::string padding(int head_dim, int planned) {
  if (head_dim < 1 || planned < head_dim) return "";
  return fmt::format(
      " (with {}, pad q, k and v with zeros, and give the model's rotary_dim and scale = 1 / "
      "sqrt({}))",
      planned, head_dim);
}

// templates/family/sm90a/column_consumer.cuh.
int hopper_own_bytes(const AttendPlan& plan) {
  return plan.rows() * plan.block_keys() * kElementBytes + 9 * plan.rows() * 4 +
         plan.row_warps * kFlagBytes;
}

// templates/family/sm90a/tile_memory.cuh.
int hopper_shared_bytes(const AttendPlan& plan, int head_dim, int kv_bytes) {
  const int windows = table_windows(plan.divides_rows(), head_dim);
  constexpr int kFirstBlockBytes = 16;
  const int row = head_dim * plan.heads * kElementBytes;
  const int turned_at_once = turned_places(plan.divides_rows(), head_dim, plan.rows());
  const int turned = turned_at_once * plan.rows() * head_dim * kElementBytes;
  const bool consumers = consumers_turn(plan.divides_rows(), head_dim);
  const int original = consumers ? 0 : plan.rows() * row_bytes(head_dim, kElementBytes);
  const int places = rotations_at_once(plan.divides_rows(), head_dim);
  const int rotations = places * rotation_bytes(head_dim);
  const int turns = places + (consumers ? 0 : turned_at_once);
  const int kept = consumers ? plan.row_warps / 4 : 0;
  const int stored = kv_bytes == 1 ? 2 * plan.stages : 0;
  const int precedence = copying_warps(plan.divides_rows(), head_dim) == 2 ? kPrecedenceBytes : 0;
  const int handovers = (2 * plan.stages + stored + turns + kept + kItemsAtOnce + windows) * 16;
  return 2 * plan.stages * plan.block_keys() * row + turned + original +
         ones_bytes(plan.divides_rows(), head_dim) + rotations +
         table_bytes(plan.block_keys(), windows) +
         kItemsAtOnce * (plan.rows() * 4 + static_cast<int>(sizeof(Item))) + handovers +
         precedence + kFlagBytes + kFirstBlockBytes +
         (plan.divides_rows() ? 0 : hopper_own_bytes(plan));
}

}  // namespace

int AttendPlan::threads(int head_dim) const {
  const int helpers = family == Family::kSm90a ? helper_warps(divides_rows(), head_dim) : 0;
  return (row_warps * key_warps + helpers) * kWarpThreads;
}

int AttendPlan::shared_bytes(int head_dim, int kv_bytes) const {
  if (family == Family::kSm90a) return hopper_shared_bytes(*this, head_dim, kv_bytes);
  const int row = row_bytes(head_dim, kElementBytes);
  const int tile = warp_keys * row_bytes(head_dim, kv_bytes);
  const int record = part_record_bytes(head_dim);
  const int item = static_cast<int>(sizeof(Item));
  const int fixed = rows() * 4 + kFlagBytes;
  if (divides_rows()) {
    const int wide = kv_bytes == 1 ? 2 * warp_keys * row : 0;
    return std::max(stages * 2 * tile + rows() * row + wide, row_warps * 16 * record) +
           table_bytes(warp_keys) + item + fixed;
  }
  const int left_tiles = (16 * record + tile - 1) / tile;
  return key_warps * std::max(stages, left_tiles) * tile + (key_warps + 1) * warp_rows * row +
         key_warps * table_bytes(warp_keys) + 2 * item + fixed;
}

int AttendPlan::kept_bytes(int head_dim) const {
  const bool keeps = family == Family::kSm90a && consumers_turn(divides_rows(), head_dim);
  return keeps ? rows() * head_dim * kElementBytes : 0;
}

std::string describe(const AttendPlan& plan) {
  return fmt::format("{}{}x{} warps, {} rows x {} keys{}, {} stages, {}/SM",
                     plan.family == Family::kSm90a ? "wgmma, " : "", plan.row_warps, plan.key_warps,
                     plan.rows(), plan.block_keys(),
                     plan.heads > 1 ? fmt::format(" of {} heads", plan.heads) : "", plan.stages,
                     plan.ctas_per_sm);
}

std::string describe(const TilePlan& plan) {
  return fmt::format("decode {}; prefill {}", describe(plan.decode), describe(plan.prefill));
}

std::vector<int> planned_head_dims() {
  std::vector<int> result;
  for (const Row& row : rows()) result.push_back(row.head_dim);
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

void validate(const TilePlan& plan, const KernelSpec& spec, const Arch& arch) {
  for (const auto& [name, attend] : {std::pair{"decode", plan.decode}, {"prefill", plan.prefill}}) {
    const AttendPlanCheck check(name, attend, spec);
    check.shape();
    check.fits(arch);
  }
  if (plan.min_split_blocks < 1)
    throw SpecError(fmt::format("tile plan: min_split_blocks = {}; it must be at least 1",
                                plan.min_split_blocks));
  if (plan.item_heads < 1)
    throw SpecError(
        fmt::format("tile plan: item_heads = {}; it must be at least 1", plan.item_heads));
  if (plan.fixed_split_blocks < 0)
    throw SpecError(fmt::format(
        "tile plan: fixed_split_blocks = {}; it must be at least 1, or 0: parts are not fixed",
        plan.fixed_split_blocks));
  if (spec.batch_invariant && plan.fixed_split_blocks == 0)
    throw SpecError(
        "tile plan: fixed_split_blocks = 0; with batch_invariant it must be at least 1");
}

bool is_legal(const TilePlan& plan, const KernelSpec& spec, const Arch& arch) {
  return fault(plan, spec, arch).empty();
}

void validate_head_dim(int head_dim) {
  const std::vector<int> planned = planned_head_dims();
  if (std::binary_search(planned.begin(), planned.end(), head_dim)) return;
  const std::vector<int> next = nearest(head_dim, planned);
  throw SpecError(fmt::format("head_dim = {} has no plan; nearest: {}{}; allowed are: {}", head_dim,
                              fmt::join(next, " and "), padding(head_dim, next.back()),
                              fmt::join(planned, ", ")));
}

std::vector<TilePlan> candidates(const KernelSpec& spec, const Arch& arch) {
  validate_head_dim(spec.head_dim);
  std::vector<TilePlan> result = fitting(spec, arch);
  if (result.empty()) throw SpecError(no_plan(spec, arch));
  return result;
}

}  // namespace lazyrope
