#include "runtime/step/step_layout.h"

#include <algorithm>
#include <limits>

#include "templates/abi/states.h"
#include "templates/planner/policy.h"

namespace lazyrope {
namespace {

constexpr std::size_t kAlignment = 256;

// Allocates arrays in a block, one after the other, each at a multiple of kAlignment bytes.
class Arena {
 public:
  explicit Arena(std::byte* memory) : memory_(memory) {}

  template <class T>
  void allocate(T*& pointer, std::size_t count) {
    // A block that is only measured has no memory to point into.
    pointer = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }

  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

// The query tiles of one phase. Rows are packed rows of one KV head.
struct PhaseExtent {
  int min_rows;  // the phase serves requests of min_rows to max_rows
  int max_rows;
  int tile_rows;
  std::size_t max_tiles;
};

std::size_t size(int count) { return static_cast<std::size_t>(count); }

struct WorkExtent {
  std::size_t work_tiles;
  std::size_t partials;  // results of KV splits
  std::size_t counters;
  std::size_t saved_queries;  // bytes
  int partial_rows;
};

void allocate_work(Arena& arena, const StepShape& shape, const WorkExtent& extent, WorkView& work) {
  const std::size_t row_bytes =
      size(partial_row_bytes(shape.head_dim, shape.states ? kRowEntryBytes : 0));
  work.partial_row_count = extent.partial_rows;
  arena.allocate(work.work_tiles, extent.work_tiles);
  arena.allocate(work.partials, extent.partials * size(extent.partial_rows) * row_bytes);
  arena.allocate(work.counters, extent.counters);
  arena.allocate(work.saved_queries, extent.saved_queries);
}

// Allocates the planners' scratch: measurements are shared, tables belong to one planner each.
void allocate_scratch(Arena& arena, std::size_t planners, PlanScratch& scratch) {
  if (scratch.max_tiles > kTilesAtOnce && planners > 1) {
    arena.allocate(scratch.measurements, size(scratch.max_tiles));
    arena.allocate(scratch.counter, 1);
  }
  if (scratch.max_tiles > kSharedTiles)
    arena.allocate(scratch.tables,
                   planners * static_cast<std::size_t>(plan_table_bytes(scratch.max_tiles)));
}

// Returns the largest number of KV heads of a work tile, which is at most one per warp. It divides
// num_kv_heads, so that all work tiles have the same number.
int max_heads_of(const KernelConfig& config, const TileConfig& tile, const StepShape& shape) {
  if (tile.heads > 1) return tile.heads;
  const int max = config.fixed_split_blocks > 0 ? 1 : config.heads_per_work_tile;
  int heads = 1;
  while (2 * heads <= max && tile.block_n() / tile.planner_block_n() % (2 * heads) == 0 &&
         shape.num_kv_heads % (2 * heads) == 0)
    heads *= 2;
  return heads;
}

// Returns the cost of a work tile beside its blocks.
int work_tile_cost(const TileConfig& tile, const StepShape& shape, int heads) {
  if (tile.divides_rows()) return kPrefillWorkTileCost;
  return decode_work_tile_cost(2 * tile.planner_block_n() * shape.head_dim * shape.kv_bytes *
                               heads);
}

// Returns the largest number of units: the tiles of all KV heads with their fixed splits.
std::size_t max_units(const PhaseExtent& extent, const StepShape& shape,
                      const StepCapacity& capacity, const TileConfig& tile, bool is_fixed) {
  const std::size_t tiles = extent.max_tiles * size(shape.num_kv_heads);
  if (!is_fixed) return tiles;
  const std::size_t all = tiles * size(kMaxFixedSplits);
  if (!tile.divides_rows()) return all;
  return std::min(all, tiles + size(capacity.requests) * size(kMaxRequestSplits));
}

void lay_out_phase(Arena& arena, const StepShape& shape, const KernelConfig& config,
                   const TileConfig& tile, const StepCapacity& capacity, const PhaseExtent& extent,
                   int sm_count, PlanPhase& phase) {
  const int num_ctas = sm_count * tile.ctas_per_sm;
  const int block_units = tile.block_n() / tile.planner_block_n();
  phase.work.num_ctas = num_ctas;
  phase.min_rows = extent.min_rows;
  phase.max_rows = extent.max_rows;
  phase.tile_rows = divisor(extent.tile_rows);
  phase.block_keys = divisor(tile.planner_block_n());
  phase.min_split_blocks =
      std::min(config.min_split_blocks, kMaxSplitBlocks / block_units) * block_units;
  phase.fixed_split_blocks = config.fixed_split_blocks * block_units;
  phase.min_heads = tile.heads;
  phase.max_heads = max_heads_of(config, tile, shape);
  phase.max_head_groups = shape.num_kv_heads / phase.min_heads;
  phase.max_group_cost = kMaxStepCost / phase.max_head_groups;
  phase.work_tile_cost = work_tile_cost(tile, shape, phase.max_heads);
  phase.short_share_cost = short_share_cost(phase.work_tile_cost);
  phase.allows_round_robin = tile.divides_rows() ? 1 : 0;
  phase.sm_count = sm_count;
  phase.has_queue = tile.divides_rows() && tile.family == Family::kSm90a ? 1 : 0;
  phase.scratch.max_tiles = static_cast<int32>(extent.max_tiles);
  // templates/ops/combine_scheduler.cuh defines the counters.
  const bool is_fixed = config.fixed_split_blocks > 0;
  const std::size_t units = max_units(extent, shape, capacity, tile, is_fixed);
  const std::size_t partials = is_fixed ? units : 2 * size(num_ctas);
  const std::size_t counters = size(num_ctas) + partials + (is_fixed ? partials : 0);
  const std::size_t work_tiles = units + size(num_ctas);
  phase.scratch.max_work_tiles = static_cast<int32>(work_tiles);
  phase.num_counters = static_cast<int32>(counters);
  const std::int64_t tokens = std::max(1, capacity.query_tokens);
  const auto rows = static_cast<int>(std::min(std::int64_t{extent.tile_rows} * phase.min_heads,
                                              tokens * shape.group_size * phase.max_heads));
  const std::size_t saved_queries = size(num_ctas) * size(tile.saved_query_bytes(shape.head_dim));
  allocate_work(arena, shape, {work_tiles, partials, counters, saved_queries, rows}, phase.work);
}

// Allocates the copy of a step's metadata for attend. A cascade can cut each of `segments`.
void allocate_step(Arena& arena, const StepCapacity& capacity, bool cascade, StepView& step) {
  arena.allocate(step.header, 1);
  arena.allocate(step.segments, size(capacity.segments) * (cascade ? kMaxKeptSegments : 1));
  arena.allocate(step.positions, size(capacity.query_tokens));
}

int num_runs(int tokens) { return (tokens + kRunSlots - 1) / kRunSlots; }

// Allocates the arrays of plan_rotation, or of plan_packing. rotate_keys reads two of them.
void allocate_runs(Arena& arena, const StepCapacity& capacity, bool packed,
                   StepRotation& rotation) {
  PlanRotationParams& runs = rotation.runs;
  arena.allocate(runs.rotated.q_indptr, size(capacity.requests) + 1);
  arena.allocate(runs.rotated.first_page, size(capacity.segments));
  arena.allocate(runs.rotated.lead, size(capacity.segments));
  arena.allocate(runs.rotated.length, size(capacity.segments));
  arena.allocate(runs.rotated.pages, size(runs.max_runs));
  if (packed) {
    for (int32** const array : {&runs.rotated.base, &runs.rotated.start, &runs.rotated.mask_base})
      arena.allocate(*array, size(capacity.segments));
    arena.allocate(runs.slots, size(runs.max_runs) * kRunSlots);
  } else {
    arena.allocate(runs.runs, size(runs.max_runs));
  }
  arena.allocate(runs.header, 1);
  rotation.keys.runs = runs.runs;
  rotation.keys.slots = runs.slots;
  rotation.keys.header = runs.header;
}

// Allocates the scratch, [runs, 16, kv_heads, head_dim], for keys and for values. Its elements have
// 16 bits, whatever those of the pool have.
void allocate_scratch_pool(Arena& arena, const StepShape& shape, int max_runs,
                           RotateKeysParams& keys) {
  KvPool& scratch = keys.scratch;
  constexpr int kElementBytes = 2;
  scratch.head_stride = static_cast<uint32>(shape.head_dim * kElementBytes);
  scratch.slot_stride = static_cast<uint32>(shape.num_kv_heads) * scratch.head_stride;
  scratch.page_stride = kRunSlots * scratch.slot_stride;
  keys.num_kv_heads = shape.num_kv_heads;
  const std::size_t bytes = size(max_runs) * scratch.page_stride;
  for (void** const pool : {&scratch.keys, &scratch.values}) {
    std::byte* memory = nullptr;
    arena.allocate(memory, bytes);
    *pool = memory;
  }
}

// Returns enough planners that each has few work tiles to write. More would be slower, because each
// planner reads all tiles.
int num_planners(const PlanParams& params, int sm_count) {
  constexpr int kWorkTiles = 32;
  constexpr int kMax = 48;
  constexpr int kMaxWithScratch = 8;
  bool has_scratch = false;
  int work_tiles = 0;
  for (const PlanPhase& phase : params.phase) {
    has_scratch = has_scratch || phase.scratch.max_tiles > kSharedTiles;
    work_tiles = std::max(work_tiles, phase.scratch.max_work_tiles);
  }
  const int max = std::min(has_scratch ? kMaxWithScratch : kMax, sm_count / kPlanPhases);
  return std::clamp((work_tiles + kWorkTiles - 1) / kWorkTiles, 1, std::max(max, 1));
}

// Returns the arrays of the shared step as the planner reads them. Each request has one segment.
StepInputs inputs_of(const SharedStepArrays& arrays, const StepCapacity& capacity) {
  const SegmentArrays& segments = arrays.segments;
  StepInputs inputs{};
  inputs.q_indptr = arrays.q_indptr;
  inputs.segment_indptr = arrays.segment_indptr;
  inputs.num_requests = capacity.requests;
  inputs.num_segments = capacity.segments;
  inputs.num_tokens = capacity.query_tokens;
  inputs.q_position = arrays.q_position;
  inputs.base = segments.base;
  inputs.start = segments.start;
  inputs.length = segments.length;
  inputs.lead = segments.lead;
  inputs.first_page = segments.first_page;
  return inputs;
}

void allocate_segments(Arena& arena, int count, SegmentArrays& segments) {
  for (int32** array :
       {&segments.base, &segments.start, &segments.length, &segments.lead, &segments.first_page})
    arena.allocate(*array, size(count));
}

void allocate_shared_step(Arena& arena, const StepCapacity& capacity, SharedStepArrays& arrays) {
  arena.allocate(arrays.q_indptr, size(capacity.requests) + 1);
  arena.allocate(arrays.segment_indptr, size(capacity.requests) + 1);
  arena.allocate(arrays.q_position, size(capacity.query_tokens));
  arena.allocate(arrays.counts, 1);
  allocate_segments(arena, capacity.segments, arrays.segments);
}

void allocate_own_segments(Arena& arena, const StepCapacity& capacity, OwnSegmentArrays& own) {
  const int count = kMaxKeptSegments * capacity.segments;
  arena.allocate(own.segment_indptr, size(capacity.requests) + 1);
  allocate_segments(arena, count, own.segments);
  arena.allocate(own.mask_base, size(count));
}

// Returns the most query tokens of a request that shares segments. A request with more fills a tile
// of the shared step's kernel by itself.
int max_sharing_tokens(const StepShape& shape, const KernelConfig& config,
                       const StepCapacity& capacity) {
  return std::min({capacity.tokens_per_request, kMaxReaderTokens,
                   std::max((config.prefill.block_m() - 1) / shape.group_size, 1)});
}

// A shared segment has at least two readers, each with at least one query token.
StepCapacity shared_capacity(const StepCapacity& capacity, int tokens_per_request) {
  const auto readers = static_cast<std::int64_t>(capacity.segments) * tokens_per_request;
  const int tokens = static_cast<int>(std::min<std::int64_t>(readers, kMaxSharedTokens));
  const int segments = std::min(capacity.segments, tokens) / 2;
  return {segments, segments, tokens, tokens};
}

// Returns the most query tokens that read shared segments.
std::size_t max_sharing(const StepCapacity& capacity, const StepCapacity& shared) {
  return size(std::min(capacity.query_tokens, shared.query_tokens));
}

// Returns the least power of two that is at least `count` and kShareChunk.
int table_segments(int count) {
  int segments = kShareChunk;
  while (segments < count) segments *= 2;
  return segments;
}

void lay_out_share(Arena& arena, const StepShape& shape, const KernelConfig& config,
                   const StepCapacity& capacity, const StepCapacity& shared, ShareParams& share) {
  constexpr int kKib = 1024;
  const int token_bytes = 2 * shape.num_kv_heads * shape.head_dim * shape.kv_bytes;
  const auto min_saved = std::int64_t{config.share_above_kib} * kKib / token_bytes;
  share.max_request_tokens = max_sharing_tokens(shape, config, capacity);
  share.table_segments = table_segments(capacity.segments);
  share.max_segments = shared.segments;
  share.max_tokens = shared.query_tokens;
  share.tile_tokens = std::max(config.prefill.block_m() / shape.group_size, 1);
  share.min_length = kMinSharedLength;
  share.min_saved_tokens = static_cast<int32>(std::min<std::int64_t>(min_saved, kMaxSavedTokens));
  allocate_shared_step(arena, shared, share.shared);
  arena.allocate(share.tokens, size(shared.query_tokens));
  arena.allocate(share.slots, size(capacity.query_tokens));
  arena.allocate(share.sharing_tokens, max_sharing(capacity, shared));
  allocate_own_segments(arena, capacity, share.own);
  if (share.table_segments > kShareSegments)
    arena.allocate(share.table, static_cast<std::size_t>(share_table_bytes(share.table_segments)));
}

}  // namespace

std::size_t lay_out_cascade(std::byte* memory, const StepShape& shape, const KernelConfig& config,
                            const StepCapacity& capacity, int sm_count, CascadeParams& params) {
  Arena arena(memory);
  const StepCapacity shared =
      shared_capacity(capacity, max_sharing_tokens(shape, config, capacity));
  // A tile of the shared step has at least one query token. If it has no more, nothing is saved.
  const bool can_save = 2 * shape.group_size <= config.prefill.block_m();
  if (!shape.cascade || shared.segments == 0 || !can_save) return 0;
  lay_out_share(arena, shape, config, capacity, shared, params.share);
  allocate_step(arena, shared, /*cascade=*/false, params.plan.step);
  const int tile_rows = config.prefill.block_m();
  const std::size_t rows = size(shared.query_tokens) * size(shape.group_size);
  PlanPhase& phase = params.plan.phase[0];
  lay_out_phase(arena, shape, config, config.prefill, shared,
                {1, std::numeric_limits<int>::max(), tile_rows,
                 rows / size(tile_rows) + size(shared.requests)},
                sm_count, phase);
  params.plan.num_planners = num_planners(params.plan, sm_count);
  allocate_scratch(arena, size(params.plan.num_planners), phase.scratch);
  params.plan.inputs = inputs_of(params.share.shared, shared);
  params.plan.shared_counts = params.share.shared.counts;
  params.view.tokens = params.share.tokens;
  params.view.slots = params.share.slots;
  params.slot_bytes =
      static_cast<uint32>(shape.num_kv_heads * shape.group_size * shared_row_bytes(shape.head_dim));
  arena.allocate(params.view.results,
                 (size(shared.query_tokens) + max_sharing(capacity, shared)) * params.slot_bytes);
  return arena.used();
}

std::size_t lay_out_step(std::byte* memory, const StepShape& shape, const KernelConfig& config,
                         const StepCapacity& capacity, int sm_count, PlanParams& params) {
  Arena arena(memory);
  allocate_step(arena, capacity, shape.cascade, params.step);
  constexpr int kAll = std::numeric_limits<int>::max();
  const int decode_rows = config.decode.rows_per_head();
  const std::size_t rows = size(capacity.query_tokens) * size(shape.group_size);
  const std::size_t requests = size(capacity.requests);
  const auto add_phase = [&](Step::Phase phase, const TileConfig& tile, const PhaseExtent& extent) {
    lay_out_phase(arena, shape, config, tile, capacity, extent, sm_count, params.phase[phase]);
  };
  const int most_rows = capacity.tokens_per_request * shape.group_size;
  if (most_rows <= decode_rows) {
    // Fixed splits can be many, so their rows are limited to the capacity's tokens a request. A
    // request with more tokens is still served, in more tiles.
    const int tile_rows = config.fixed_split_blocks > 0 ? std::max(most_rows, 2) : decode_rows;
    add_phase(Step::kDecode, config.decode,
              {1, kAll, tile_rows, rows / size(tile_rows) + requests});
  } else {
    const int prefill_rows = config.prefill.block_m();
    add_phase(Step::kDecode, config.decode, {1, decode_rows, decode_rows, requests});
    add_phase(Step::kPrefill, config.prefill,
              {decode_rows + 1, kAll, prefill_rows, rows / size(prefill_rows) + requests});
  }
  params.num_planners = num_planners(params, sm_count);
  for (PlanPhase& phase : params.phase)
    allocate_scratch(arena, size(params.num_planners), phase.scratch);
  return arena.used();
}

std::size_t lay_out_page_mass(std::byte* memory, const StepShape& shape,
                              const StepCapacity& capacity, StepPageMass& page_mass) {
  page_mass = {};
  if (!shape.page_mass) return 0;
  Arena arena(memory);
  PlanPageMassParams& plan = page_mass.plan;
  plan.num_heads = shape.num_kv_heads * shape.group_size;
  plan.max_token_runs = capacity.mass_pages;
  arena.allocate(plan.run_indptr, size(capacity.segments) + 1);
  arena.allocate(plan.first_runs, size(capacity.segments));
  arena.allocate(plan.rows, size(capacity.query_tokens));
  arena.allocate(plan.requests, size(capacity.requests));
  arena.allocate(plan.header, 1);
  page_mass.view.rows = plan.rows;
  if (page_mass.has_room()) {
    arena.allocate(plan.terms, size(capacity.mass_pages) * size(plan.num_heads));
    page_mass.view.terms = plan.terms;
    arena.allocate(page_mass.lse, size(capacity.query_tokens) * size(plan.num_heads));
  }
  return arena.used();
}

std::size_t lay_out_rotation(std::byte* memory, const StepShape& shape,
                             const StepCapacity& capacity, int sm_count, const PlanParams& params,
                             StepRotation& rotation) {
  rotation = {};
  const PlanPhase& unrotated = params.phase[Step::kPrefill];
  const int max_runs = num_runs(capacity.rotated_tokens);
  if (!shape.rotated || max_runs == 0 || unrotated.work.num_ctas == 0) return 0;
  Arena arena(memory);
  rotation.runs.group_size = shape.group_size;
  rotation.runs.min_rows = unrotated.min_rows;
  rotation.runs.max_runs = max_runs;
  rotation.runs.num_unrotated_ctas = unrotated.work.num_ctas;
  rotation.runs.unrotated_work_tiles = unrotated.work.work_tiles;
  const TileConfig& tile = shape.rotated->prefill;
  rotation.runs.block_rows = tile.block_m();
  rotation.runs.block_keys = tile.block_n();
  rotation.runs.widened_block_tokens = shape.kv_bytes == 1 ? kPackedWidenedBlockTokens : 0;
  allocate_runs(arena, capacity, shape.packed, rotation);
  allocate_scratch_pool(arena, shape, max_runs, rotation.keys);
  const std::size_t rows = size(capacity.query_tokens) * size(shape.group_size);
  allocate_step(arena, capacity, /*cascade=*/false, rotation.plan.step);
  lay_out_phase(arena, shape, *shape.rotated, tile, capacity,
                {unrotated.min_rows, unrotated.max_rows, tile.block_m(),
                 rows / size(tile.block_m()) + size(capacity.requests)},
                sm_count, rotation.plan.phase[0]);
  rotation.plan.num_planners = num_planners(rotation.plan, sm_count);
  allocate_scratch(arena, size(rotation.plan.num_planners), rotation.plan.phase[0].scratch);
  return arena.used();
}

}  // namespace lazyrope
