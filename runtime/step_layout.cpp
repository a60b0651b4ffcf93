#include "runtime/step_layout.h"

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
  std::size_t max_tiles;
};

std::size_t size(int count) { return static_cast<std::size_t>(count); }

void place_work(Block& block, const StepShape& shape, std::size_t max_items, int partial_rows,
                WorkView& work) {
  const std::size_t ctas = size(work.num_ctas);
  const std::size_t record_bytes = size(part_record_bytes(shape.head_dim));
  work.partial_row_count = partial_rows;
  block.place(work.items, max_items);
  block.place(work.partials, 2 * ctas * size(partial_rows) * record_bytes);
  block.place(work.counters, 3 * ctas);
}

void place_scratch(Block& block, const StepCapacity& capacity, std::size_t max_tiles,
                   std::size_t max_items, PlanScratch& scratch) {
  block.place(scratch.tile_begin, size(capacity.requests) + 1);
  block.place(scratch.tile_request, max_tiles);
  block.place(scratch.tile_first_position, max_tiles);
  block.place(scratch.tile_last_position, max_tiles);
  block.place(scratch.tile_blocks, max_tiles);
  block.place(scratch.cost_begin, max_tiles + 1);
  scratch.max_tiles = static_cast<int32>(max_tiles);
  scratch.max_items = static_cast<int32>(max_items);
}

// At most one a warp, and all heads in equal items.
int heads_of_an_item(const AttendPlan& plan, const StepShape& shape) {
  int heads = 1;
  while (plan.key_warps % (2 * heads) == 0 && shape.num_kv_heads % (2 * heads) == 0) heads *= 2;
  return heads;
}

void place_phase(Block& block, const StepShape& shape, const AttendPlan& plan, int min_split_blocks,
                 const StepCapacity& capacity, const PhaseExtent& extent, int sm_count,
                 PlanPhase& phase) {
  const int num_ctas = sm_count * plan.ctas_per_sm;
  const std::size_t max_items = extent.max_tiles * size(shape.num_kv_heads) + size(num_ctas);
  phase.min_rows = extent.min_rows;
  phase.max_rows = extent.max_rows;
  phase.tile_rows = plan.rows();
  phase.block_keys = plan.warp_keys;
  phase.min_split_blocks = min_split_blocks * plan.key_warps;
  phase.max_heads = heads_of_an_item(plan, shape);
  phase.work.num_ctas = num_ctas;
  const int tokens = std::max(1, capacity.query_tokens);
  const int rows = std::min(plan.rows(), tokens * shape.group_size * phase.max_heads);
  place_work(block, shape, max_items, rows, phase.work);
  place_scratch(block, capacity, extent.max_tiles, max_items, phase.scratch);
}

}  // namespace

std::size_t lay_out_step(std::byte* memory, const StepShape& shape, const TilePlan& plan,
                         const StepCapacity& capacity, int sm_count, PlanParams& params) {
  Block block(memory);
  block.place(params.step.header, 1);
  block.place(params.step.segments, size(capacity.segments));
  block.place(params.step.positions, size(capacity.query_tokens));
  params.num_kv_heads = shape.num_kv_heads;
  constexpr int kAll = std::numeric_limits<int>::max();
  const int decode_rows = plan.decode.rows();
  const std::size_t rows = size(capacity.query_tokens) * size(shape.group_size);
  const auto place = [&](Step::Phase phase, const AttendPlan& attend, int min_rows, int max_rows,
                         std::size_t max_tiles) {
    place_phase(block, shape, attend, plan.min_split_blocks, capacity,
                {min_rows, max_rows, max_tiles}, sm_count, params.phase[phase]);
  };
  if (capacity.tokens_per_request * shape.group_size <= decode_rows) {
    // Should a request bring more than was said, it is served none the less.
    place(Step::kDecode, plan.decode, 1, kAll, rows / size(decode_rows) + size(capacity.requests));
  } else {
    place(Step::kDecode, plan.decode, 1, decode_rows, size(capacity.requests));
    place(Step::kPrefill, plan.prefill, decode_rows + 1, kAll,
          rows / size(plan.prefill.rows()) + size(capacity.requests));
  }
  return block.used();
}

}  // namespace lazyrope
