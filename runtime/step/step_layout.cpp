#include "runtime/step/step_layout.h"

#include <algorithm>
#include <limits>

namespace lazyrope {
namespace {

constexpr std::size_t kAlignment = 256;

// Hands out pieces of a block one behind the other.
class Block {
 public:
  explicit Block(std::byte* memory) : memory_(memory) {}

  template <class T>
  void place(T*& pointer, std::size_t count) {
    // A block that is only measured has no memory to point into.
    pointer = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }

  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

struct PhaseExtent {
  int min_rows;
  int max_rows;
  int tile_rows;
  std::size_t max_tiles;
};

std::size_t size(int count) { return static_cast<std::size_t>(count); }

struct WorkExtent {
  std::size_t items;
  std::size_t partials;  // results of parts
  std::size_t counters;
  std::size_t kept;  // bytes
  int partial_rows;
};

void place_work(Block& block, const StepShape& shape, const WorkExtent& extent, WorkView& work) {
  const std::size_t row_bytes = size(partial_row_bytes(shape.head_dim));
  work.partial_row_count = extent.partial_rows;
  block.place(work.items, extent.items);
  block.place(work.partials, extent.partials * size(extent.partial_rows) * row_bytes);
  block.place(work.counters, extent.counters);
  block.place(work.kept, extent.kept);
}

// For each of so many planners, and for all together.
void place_scratch(Block& block, std::size_t planners, PlanScratch& scratch) {
  if (scratch.max_tiles > kTilesAtOnce && planners > 1) {
    block.place(scratch.notes, size(scratch.max_tiles));
    block.place(scratch.counter, 1);
  }
  if (scratch.max_tiles > kSharedTiles)
    block.place(scratch.tables,
                planners * static_cast<std::size_t>(plan_table_bytes(scratch.max_tiles)));
}

// At most one a warp, and all heads in equal items.
int most_heads(const TilePlan& plan, const AttendPlan& attend, const StepShape& shape) {
  if (attend.heads > 1) return attend.heads;
  const int most = plan.fixed_split_blocks > 0 ? 1 : plan.item_heads;
  int heads = 1;
  while (2 * heads <= most && attend.block_keys() / attend.unit_keys() % (2 * heads) == 0 &&
         shape.num_kv_heads % (2 * heads) == 0)
    heads *= 2;
  return heads;
}

// While one item ends and the next begins, a CTA reads nothing. Of decode, what it could have read:
// measured on an H200, and much the same for all head dims.
int item_cost(const AttendPlan& attend, const StepShape& shape, int heads) {
  constexpr int kItemBytes = 160 * 1024;
  if (attend.divides_rows()) return kBlockCost;
  const int block_bytes = 2 * attend.unit_keys() * shape.head_dim * shape.kv_bytes * heads;
  return std::max(kBlockCost * kItemBytes / block_bytes, kBlockCost);
}

// Of the tiles of all KV heads, with their fixed parts.
std::size_t most_units(const PhaseExtent& extent, const StepShape& shape,
                       const StepCapacity& capacity, const AttendPlan& attend, bool is_fixed) {
  const std::size_t tiles = extent.max_tiles * size(shape.num_kv_heads);
  if (!is_fixed) return tiles;
  const std::size_t all = tiles * size(kMostFixedParts);
  if (!attend.divides_rows()) return all;
  return std::min(all, tiles + size(capacity.requests) * size(kRequestParts));
}

void place_phase(Block& block, const StepShape& shape, const TilePlan& plan,
                 const AttendPlan& attend, const StepCapacity& capacity, const PhaseExtent& extent,
                 int sm_count, PlanPhase& phase) {
  const int num_ctas = sm_count * attend.ctas_per_sm;
  const int block_units = attend.block_keys() / attend.unit_keys();
  phase.work.num_ctas = num_ctas;
  phase.min_rows = extent.min_rows;
  phase.max_rows = extent.max_rows;
  phase.tile_rows = divisor(extent.tile_rows);
  phase.block_keys = divisor(attend.unit_keys());
  phase.min_split_blocks =
      std::min(plan.min_split_blocks, kMostSplitBlocks / block_units) * block_units;
  phase.fixed_split_blocks = plan.fixed_split_blocks * block_units;
  phase.min_heads = attend.heads;
  phase.max_heads = most_heads(plan, attend, shape);
  phase.most_groups = shape.num_kv_heads / phase.min_heads;
  phase.most_cost = kMostStepCost / phase.most_groups;
  phase.item_cost = item_cost(attend, shape, phase.max_heads);
  phase.short_cost = 20 * phase.item_cost;  // measured on an H200
  phase.may_deal = attend.divides_rows() ? 1 : 0;
  phase.ctas_at_once = sm_count;
  phase.has_queue = attend.divides_rows() && attend.family == Family::kSm90a ? 1 : 0;
  phase.scratch.max_tiles = static_cast<int32>(extent.max_tiles);
  // templates/ops/split_tile.cuh tells what counters there are.
  const bool is_fixed = plan.fixed_split_blocks > 0;
  const std::size_t units = most_units(extent, shape, capacity, attend, is_fixed);
  const std::size_t partials = is_fixed ? units : 2 * size(num_ctas);
  const std::size_t counters = size(num_ctas) + partials + (is_fixed ? partials : 0);
  const std::size_t items = units + size(num_ctas);
  phase.scratch.max_items = static_cast<int32>(items);
  phase.num_counters = static_cast<int32>(counters);
  const std::int64_t tokens = std::max(1, capacity.query_tokens);
  const auto rows = static_cast<int>(std::min(std::int64_t{extent.tile_rows} * phase.min_heads,
                                              tokens * shape.group_size * phase.max_heads));
  const std::size_t kept = size(num_ctas) * size(attend.kept_bytes(shape.head_dim));
  place_work(block, shape, {items, partials, counters, kept, rows}, phase.work);
}

// Enough that each has few items to write, but not so many that what all of them read takes longer.
int num_planners(const PlanParams& params, int sm_count) {
  constexpr int kItems = 32;
  constexpr int kMost = 48;
  constexpr int kMostWithScratch = 8;
  bool has_scratch = false;
  int items = 0;
  for (const PlanPhase& phase : params.phase) {
    has_scratch = has_scratch || phase.scratch.max_tiles > kSharedTiles;
    items = std::max(items, phase.scratch.max_items);
  }
  const int most = std::min(has_scratch ? kMostWithScratch : kMost, sm_count / kPlanPhases);
  return std::clamp((items + kItems - 1) / kItems, 1, std::max(most, 1));
}

}  // namespace

std::size_t lay_out_step(std::byte* memory, const StepShape& shape, const TilePlan& plan,
                         const StepCapacity& capacity, int sm_count, PlanParams& params) {
  Block block(memory);
  block.place(params.step.header, 1);
  block.place(params.step.segments, size(capacity.segments));
  block.place(params.step.positions, size(capacity.query_tokens));
  constexpr int kAll = std::numeric_limits<int>::max();
  const int decode_rows = plan.decode.head_rows();
  const std::size_t rows = size(capacity.query_tokens) * size(shape.group_size);
  const std::size_t requests = size(capacity.requests);
  const auto place = [&](Step::Phase phase, const AttendPlan& attend, const PhaseExtent& extent) {
    place_phase(block, shape, plan, attend, capacity, extent, sm_count, params.phase[phase]);
  };
  const int most_rows = capacity.tokens_per_request * shape.group_size;
  if (most_rows <= decode_rows) {
    // Fixed parts have room for as many rows as were said, for there may be many. Should a request
    // bring more than was said, it is served none the less.
    const int tile_rows = plan.fixed_split_blocks > 0 ? std::max(most_rows, 2) : decode_rows;
    place(Step::kDecode, plan.decode, {1, kAll, tile_rows, rows / size(tile_rows) + requests});
  } else {
    const int prefill_rows = plan.prefill.rows();
    place(Step::kDecode, plan.decode, {1, decode_rows, decode_rows, requests});
    place(Step::kPrefill, plan.prefill,
          {decode_rows + 1, kAll, prefill_rows, rows / size(prefill_rows) + requests});
  }
  params.num_planners = num_planners(params, sm_count);
  for (PlanPhase& phase : params.phase)
    place_scratch(block, size(params.num_planners), phase.scratch);
  return block.used();
}

}  // namespace lazyrope
