// The planner: turns the caller's metadata into a step's segments, and into items for one attend
// kernel.
//
// Every tile of query rows and so many KV heads make a unit, which sees so many blocks of keys. Units
// laid end to end by cost (a constant, so much a block, so much a segment) form a line, and each
// CTA of the attend kernel gets an equal length of it: the tail of a unit, some whole units, the
// head of another. A unit cut by k boundaries has k + 1 parts: ops/split_tile.cuh. The line has all
// units of the same heads behind one another, so that CTAs read a token's heads, neighbours in
// memory, at the same time.
//
// One CTA plans one attend kernel. Stages hand their results on through the step's scratch memory,
// and through shared memory what there is of each boundary.
#pragma once

#include "abi/plan.h"
#include "ops/cta_scan.cuh"
#include "ops/segment_blocks.cuh"

namespace lazyrope {

template <class Spec>
class Planner {
  static constexpr int32 kMaxBoundaries = Spec::kThreads;

 public:
  LAZYROPE_DEVICE Planner(const PlanParams& params, const PlanPhase& phase, SharedPtr memory)
      : in_(params.inputs),
        step_(params.step),
        phase_(phase),
        work_(phase.work),
        scratch_(phase.scratch),
        num_kv_heads_(params.num_kv_heads),
        memory_(memory) {}

  // What attend reads beside its items; by one CTA only.
  LAZYROPE_DEVICE void copy_inputs() const {
    if (thread_index() == 0) st_global(step_.header, StepHeader{in_.pages, in_.page_size, 0});
#pragma unroll 1
    for (int32 i = thread_index(); i < in_.num_tokens; i += block_threads())
      st_global(step_.positions + i, ld_global_nc(in_.q_position + i));
#pragma unroll 1
    for (int32 i = thread_index(); i < in_.num_segments; i += block_threads())
      st_global(step_.segments + i, segment(i));
  }

  LAZYROPE_DEVICE void plan() {
#pragma unroll 1
    for (int32 i = thread_index(); i < 3 * work_.num_ctas; i += block_threads())
      st_global(work_.counters + i, uint32{0});
    const int32 num_tiles = count_tiles();
    num_heads_ = heads_of_an_item(num_tiles);
    bar_sync();
    measure_tiles(num_tiles);
    bar_sync();
    const int64 cost = sum_costs(num_tiles);
    bar_sync();
    place_boundaries(num_tiles, cost);
    bar_sync();
    const int32 num_items = count_items();
    bar_sync();
    write_items(num_items, num_tiles);
  }

 private:
  // Costs in units of an eighth of a block.
  static constexpr int32 kTileCost = 8;
  static constexpr int32 kBlockCost = 8;
  static constexpr int32 kSegmentCost = 2;
  // Of a unit on average, so that merging them is cheap; where there would be more, items have
  // fewer heads.
  static constexpr int32 kMostParts = 4;

  struct RowRange {
    int32 first_token;  // row of q
    int32 first_row;    // packed, of the request
    int32 num_rows;
  };

  struct Place {
    int32 unit;
    int32 block;
  };

  LAZYROPE_DEVICE SegmentRecord segment(int32 i) const {
    const int32 base = ld_global_nc(in_.base + i);
    const int32 lead = in_.lead == nullptr ? 0 : ld_global_nc(in_.lead + i);
    return {base,
            base + ld_global_nc(in_.start + i) - lead,
            lead,
            lead + ld_global_nc(in_.length + i),
            ld_global_nc(in_.first_page + i),
            {0, 0, 0}};
  }

  LAZYROPE_DEVICE int32 blocks_of(int32 segment_index, PositionRange queries) const {
    return visible_segment<typename Spec::Mask>(segment(segment_index), queries)
        .blocks(phase_.block_keys);
  }

  // Packed rows of a request per KV head, or 0 where another attend kernel serves it.
  LAZYROPE_DEVICE int32 rows_of(int32 request) const {
    const int32 tokens =
        ld_global_nc(in_.q_indptr + request + 1) - ld_global_nc(in_.q_indptr + request);
    const int32 rows = tokens * Spec::kGroupSize;
    return rows >= phase_.min_rows && rows <= phase_.max_rows ? rows : 0;
  }

  // scratch.tile_begin; returns the number of tiles, never more than the step has room for.
  LAZYROPE_DEVICE int32 count_tiles() const {
    int64 passed = 0;
#pragma unroll 1
    for (int32 first = 0; first < in_.num_requests; first += block_threads()) {
      const int32 request = first + thread_index();
      const bool exists = request < in_.num_requests;
      const Prefix tiles =
          cta_scan(memory_, exists ? ceil_div(rows_of(request), phase_.tile_rows) : 0);
      if (exists)
        st_global(scratch_.tile_begin + request, static_cast<int32>(passed + tiles.before));
      passed += tiles.total;
    }
    const auto num_tiles =
        static_cast<int32>(smaller(passed, static_cast<int64>(scratch_.max_tiles)));
    if (thread_index() == 0) st_global(scratch_.tile_begin + in_.num_requests, num_tiles);
    return num_tiles;
  }

  // As many as have room for their rows together in a tile, unless that leaves too few units.
  LAZYROPE_DEVICE int32 heads_of_an_item(int32 num_tiles) const {
    int32 most_rows = 1;
#pragma unroll 1
    for (int32 request = thread_index(); request < in_.num_requests; request += block_threads())
      most_rows = larger(most_rows, smaller(rows_of(request), phase_.tile_rows));
    most_rows = cta_max(memory_, most_rows);
    int32 heads = phase_.max_heads;
    while (heads > 1 && (heads * most_rows > phase_.tile_rows ||
                         num_tiles * (num_kv_heads_ / heads) * kMostParts < work_.num_ctas))
      heads /= 2;
    return heads;
  }
  LAZYROPE_DEVICE int32 num_groups() const { return num_kv_heads_ / num_heads_; }

  LAZYROPE_DEVICE RowRange rows_of_tile(int32 request, int32 tile) const {
    const int32 first_row = (tile - ld_global(scratch_.tile_begin + request)) * phase_.tile_rows;
    return {ld_global_nc(in_.q_indptr + request), first_row,
            smaller(rows_of(request) - first_row, phase_.tile_rows)};
  }

  // One warp a tile: the rows' positions, the blocks they see, the cost.
  LAZYROPE_DEVICE void measure_tiles(int32 num_tiles) const {
#pragma unroll 1
    for (int32 tile = warp_index(); tile < num_tiles; tile += block_threads() / kWarpThreads) {
      const int32 request = upper_bound(scratch_.tile_begin, in_.num_requests, tile) - 1;
      const RowRange rows = rows_of_tile(request, tile);
      const PositionRange positions = positions_of(rows);
      int32 blocks = 0;
      int32 segments = 0;
      const int32 end = ld_global_nc(in_.segment_indptr + request + 1);
#pragma unroll 1
      for (int32 i = ld_global_nc(in_.segment_indptr + request) + lane_index(); i < end;
           i += kWarpThreads) {
        const int32 n = blocks_of(i, positions);
        blocks += n;
        segments += n > 0 ? 1 : 0;
      }
      blocks = warp_sum(blocks);
      segments = warp_sum(segments);
      if (lane_index() != 0) continue;
      st_global(scratch_.tile_request + tile, request);
      st_global(scratch_.tile_first_position + tile, positions.first);
      st_global(scratch_.tile_last_position + tile, positions.last);
      st_global(scratch_.tile_blocks + tile, blocks);
      st_global(scratch_.cost_begin + tile, kTileCost + static_cast<int64>(blocks) * kBlockCost +
                                                static_cast<int64>(segments) * kSegmentCost);
    }
  }

  LAZYROPE_DEVICE PositionRange positions_of(const RowRange& rows) const {
    const int32 first = rows.first_token + rows.first_row / Spec::kGroupSize;
    const int32 last = rows.first_token + (rows.first_row + rows.num_rows - 1) / Spec::kGroupSize;
    PositionRange range = {kLastPosition, kFirstPosition};
#pragma unroll 1
    for (int32 token = first + lane_index(); token <= last; token += kWarpThreads) {
      const int32 position = ld_global_nc(in_.q_position + token);
      range = {smaller(range.first, position), larger(range.last, position)};
    }
#pragma unroll
    for (int mask = kWarpThreads / 2; mask > 0; mask /= 2)
      range = {smaller(range.first, shfl_sync_bfly(range.first, mask)),
               larger(range.last, shfl_sync_bfly(range.last, mask))};
    return range;
  }

  LAZYROPE_DEVICE static int32 warp_sum(int32 value) {
#pragma unroll
    for (int mask = kWarpThreads / 2; mask > 0; mask /= 2) value += shfl_sync_bfly(value, mask);
    return value;
  }

  // Costs become sums of the costs before; returns the sum of all, for the heads of one item.
  LAZYROPE_DEVICE int64 sum_costs(int32 num_tiles) const {
    int64 passed = 0;
#pragma unroll 1
    for (int32 first = 0; first < num_tiles; first += block_threads()) {
      const int32 tile = first + thread_index();
      const bool exists = tile < num_tiles;
      const Prefix cost = cta_scan(memory_, exists ? ld_global(scratch_.cost_begin + tile) : 0);
      if (exists) st_global(scratch_.cost_begin + tile, passed + cost.before);
      passed += cost.total;
    }
    if (thread_index() == 0) st_global(scratch_.cost_begin + num_tiles, passed);
    return passed;
  }

  // A thread a boundary: the unit and block at which each CTA begins. num_ctas + 1 boundaries fit
  // the CTA's threads.
  LAZYROPE_DEVICE void place_boundaries(int32 num_tiles, int64 cost) const {
    const int64 line = cost * num_groups();
    const int64 least = static_cast<int64>(phase_.min_split_blocks) * kBlockCost;
    const int64 shares = smaller(static_cast<int64>(work_.num_ctas), (line + least - 1) / least);
    const int32 cta = thread_index();
    if (cta > work_.num_ctas) return;
    Place place = {num_tiles * num_groups(), 0};
    if (cta < shares) place = place_at(num_tiles, cost, line * cta / shares);
    st_shared(boundary_memory(kOrder, cta), 2 * place.unit + (place.block > 0 ? 1 : 0));
    st_shared(boundary_memory(kBlock, cta), place.block);
  }

  // The block at a point of the line; the unit's own ends where those are near.
  LAZYROPE_DEVICE Place place_at(int32 num_tiles, int64 group_cost, int64 point) const {
    const int64 group = point / group_cost;
    const int64 into_group = point % group_cost;
    const int32 tile = upper_bound(scratch_.cost_begin, num_tiles, into_group) - 1;
    const int64 begin = ld_global(scratch_.cost_begin + tile);
    const int64 cost = ld_global(scratch_.cost_begin + tile + 1) - begin;
    const int32 unit = static_cast<int32>(group) * num_tiles + tile;
    const int32 blocks = ld_global(scratch_.tile_blocks + tile);
    const auto block = static_cast<int32>((into_group - begin) * blocks / cost);
    if (block < phase_.min_split_blocks) return {unit, 0};
    if (blocks - block < phase_.min_split_blocks) return {unit + 1, 0};
    return {unit, block};
  }

  // What is kept of each boundary in shared memory.
  enum BoundaryField {
    kOrder,  // 2 u at the start of unit u, 2 u + 1 inside it
    kBlock,  // of that unit
    kRank,   // count of distinct boundaries before it
    kItem,   // items of CTAs before it, without the first of each
    kBoundaryFields
  };

  LAZYROPE_DEVICE SharedPtr boundary_memory(BoundaryField field, int32 cta) const {
    return memory_ + kScanBytes + (field * kMaxBoundaries + cta) * 4;
  }
  LAZYROPE_DEVICE int32 boundary(BoundaryField field, int32 cta) const {
    return ld_shared<int32>(boundary_memory(field, cta));
  }
  LAZYROPE_DEVICE Place place(int32 cta) const {
    return {boundary(kOrder, cta) / 2, boundary(kBlock, cta)};
  }

  LAZYROPE_DEVICE static bool same(Place a, Place b) {
    return a.unit == b.unit && a.block == b.block;
  }

  // Items of a CTA.
  LAZYROPE_DEVICE int32 count_between(Place begin, Place end) const {
    return same(begin, end) ? 0 : end.unit - begin.unit + (end.block > 0 ? 1 : 0);
  }

  // Boundaries that coincide leave CTAs without work; ranks count the others. Returns how many
  // items there are beside the first of each CTA.
  LAZYROPE_DEVICE int32 count_items() const {
    const int32 cta = thread_index();
    const bool exists = cta <= work_.num_ctas;
    bool is_new = false;
    int32 others = 0;
    if (exists && cta > 0) is_new = !same(place(cta), place(cta - 1));
    if (cta < work_.num_ctas) others = larger(count_between(place(cta), place(cta + 1)) - 1, 0);
    // Both sums in one scan.
    const Prefix sums = cta_scan(memory_, (static_cast<int64>(is_new ? 1 : 0) << 32) + others);
    const int32 most = scratch_.max_items - work_.num_ctas;
    if (exists) {
      st_shared(boundary_memory(kRank, cta),
                static_cast<int32>(sums.before >> 32) + (is_new ? 1 : 0));
      st_shared(boundary_memory(kItem, cta), smaller(static_cast<int32>(sums.before), most));
    }
    return smaller(static_cast<int32>(sums.total), most);
  }

  // One warp an item.
  LAZYROPE_DEVICE void write_items(int32 num_others, int32 num_tiles) const {
    const int32 num_ctas = work_.num_ctas;
#pragma unroll 1
    for (int32 i = warp_index(); i < num_ctas + num_others; i += block_threads() / kWarpThreads) {
      const int32 other = i - num_ctas;
      const int32 cta = i < num_ctas
                            ? i
                            : upper_bound(boundary_memory(kItem, 0), num_ctas, other) - 1;
      const int32 nth = i < num_ctas ? 0 : other - boundary(kItem, cta) + 1;
      write_item(i, cta, nth, num_tiles);
    }
  }

  LAZYROPE_DEVICE void write_item(int32 index, int32 cta, int32 nth, int32 num_tiles) const {
    const Place begin = place(cta);
    const Place end = place(cta + 1);
    const int32 count = count_between(begin, end);
    Item made{};
    if (nth < count) {
      const int32 unit = begin.unit + nth;
      const int32 first = nth == 0 ? begin.block : 0;
      const int32 last =
          unit == end.unit ? end.block : ld_global(scratch_.tile_blocks + unit % num_tiles);
      made = item(cta, unit, num_tiles, first, last);
      const int32 next = work_.num_ctas + boundary(kItem, cta) + nth;
      made.keys.next = nth + 1 < count && next < scratch_.max_items ? next : -1;
      made.start = start(made, work_.items[index].start.page);
    }
    if (lane_index() == 0) {
      Item* to = work_.items + index;
      st_global(&to->extent, made.extent);
      st_global(&to->rows, made.rows);
      st_global(&to->keys, made.keys);
      st_global(&to->split, made.split);
      st_global(&to->start.base, made.start.base);
      st_global(&to->start.position, made.start.position);
      st_global(&to->start.begin, made.start.begin);
      st_global(&to->start.end, made.start.end);
      st_global(&to->start.slot, made.start.slot);
      st_global(&to->start.page_size, made.start.page_size);
    }
  }

  // Blocks first to last - 1 of a unit; where first is not 0, the CTA's boundary lies there.
  LAZYROPE_DEVICE Item item(int32 cta, int32 unit, int32 num_tiles, int32 first, int32 last) const {
    const int32 tile = unit % num_tiles;
    const int32 request = ld_global(scratch_.tile_request + tile);
    const RowRange rows = rows_of_tile(request, tile);
    Item item{};
    item.extent = {last - first, rows.num_rows, ld_global(scratch_.tile_first_position + tile),
                   ld_global(scratch_.tile_last_position + tile)};
    item.rows = {rows.first_token, rows.first_row, unit / num_tiles * num_heads_, num_heads_};
    item.keys = {ld_global_nc(in_.segment_indptr + request),
                 ld_global_nc(in_.segment_indptr + request + 1), first, -1};
    item.split = split(cta, unit, first);
    return item;
  }

  // One warp: where the item's first blocks lie.
  LAZYROPE_DEVICE ItemStart start(const Item& item, int32* pages) const {
    ItemStart start{};
    if (item.extent.num_blocks == 0) return start;
    const PositionRange positions = {item.extent.first_position, item.extent.last_position};
    int32 passed = 0;
    int32 index = item.keys.segment;
    VisibleSegment found{};
    int32 block = 0;  // of the segment
#pragma unroll 1
    for (; index < item.keys.segment_end; index += kWarpThreads) {
      VisibleSegment segment{};
      const int32 mine = index + lane_index();
      if (mine < item.keys.segment_end)
        segment = visible_segment<typename Spec::Mask>(this->segment(mine), positions);
      const int32 blocks = segment.blocks(phase_.block_keys);
      const int32 through = warp_prefix_sum(blocks);
      const int32 total = shfl_sync_idx(through, kWarpThreads - 1);
      const int32 target = item.keys.first_block - passed;
      if (target < total) {
        const int32 owner = warp_upper_bound(through, target);
        block = target - shfl_sync_idx(through - blocks, owner);
        found = from_lane(segment, owner);
        break;
      }
      passed += total;
    }
    const int32 slot = found.first_slot() + block * phase_.block_keys;
    start.base = found.record.base;
    start.position = found.record.origin + slot;
    start.begin = larger(found.record.begin - slot, 0);
    start.end = found.end - slot;
    start.slot = slot % in_.page_size;
    start.page_size = in_.page_size;
    const int32 run_slot = slot + lane_index() * kRunSlots;
    if (lane_index() < kStartRuns && run_slot < found.end)
      st_global(pages + lane_index(),
                ld_global_nc(in_.pages + found.record.first_page + run_slot / in_.page_size));
    return start;
  }

  // Boundaries of ranks r .. r + k - 1 cut a unit into k + 1 parts, which use results 2 r to 2 r +
  // k and counter r: those of another unit's boundaries lie beyond.
  LAZYROPE_DEVICE ItemSplit split(int32 cta, int32 unit, int32 first) const {
    const int32 count = work_.num_ctas + 1;
    const int32 inside = upper_bound(boundary_memory(kOrder, 0), count, 2 * unit);
    const int32 after = upper_bound(boundary_memory(kOrder, 0), count, 2 * unit + 1);
    if (inside == after) return {0, 1, 0, 0};
    const int32 lowest = boundary(kRank, inside);
    return {first > 0 ? boundary(kRank, cta) - lowest + 1 : 0,
            boundary(kRank, after - 1) - lowest + 2, 2 * lowest, lowest};
  }

  static constexpr int32 kScanBytes = kMaxBoundaries / kWarpThreads * 8;

  const StepInputs& in_;
  const StepView& step_;
  const PlanPhase& phase_;
  const WorkView& work_;
  const PlanScratch& scratch_;
  int32 num_kv_heads_;
  int32 num_heads_ = 1;  // KV heads of an item
  SharedPtr memory_;

 public:
  static constexpr int kSharedBytes = kScanBytes + kBoundaryFields * kMaxBoundaries * 4;
};

}  // namespace lazyrope
