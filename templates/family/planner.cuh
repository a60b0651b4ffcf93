// The planner: turns the caller's metadata into a step's segments, and into items for one attend
// kernel.
//
// Every tile of query rows and so many KV heads make a unit, which sees so many blocks of keys.
// Units laid end to end by cost (so much an item, a block, a segment) form a line, of which each
// CTA of the attend kernel gets an equal length (family/plan_cut.cuh). A unit cut by k boundaries
// has k + 1 parts: ops/split_tile.cuh. The line has all units of the same heads behind one another,
// so that CTAs read a token's heads, neighbours in memory, at the same time. Where parts are fixed,
// each is a unit, and boundaries lie between units. Where whole units can be dealt out about
// equally, prefill does that instead (family/plan_deal.cuh), or has CTAs take them from a queue
// (family/plan_queue.cuh): CTAs that run at the same time then have the same keys, which the L2
// cache holds, and there is next to nothing to merge.
//
// What takes time is the way to memory, so that it is gone four times only: for what there is of
// each request, for segments, which by then are in a cache, and for the segments of items and their
// page numbers, likewise. All else is in registers and shared memory. Several CTAs plan the same
// and write different items; where there are many tiles, they divide the measuring.
#pragma once

#include "family/plan_cut.cuh"
#include "family/plan_deal.cuh"
#include "family/plan_items.cuh"
#include "family/plan_notes.cuh"
#include "family/plan_queue.cuh"

namespace lazyrope {

LAZYROPE_DEVICE bool is_plain(const PlanPhase& phase) {
  return phase.scratch.rows == nullptr && phase.may_deal == 0 && phase.fixed_split_blocks == 0 &&
         phase.max_heads == phase.min_heads;
}

// kIsPlain: units are whole tiles of always as many KV heads, and are not dealt out. That takes
// less code, and much of a planner's time goes by while its code comes from memory.
template <class Spec, class Tiles, bool kIsPlain>
class Planner {
  using Units = lazyrope::Units<Tiles, kIsPlain>;
  using Mask = typename Spec::Mask;
  using Scan = CtaScan<Spec::kThreads>;

 public:
  static constexpr int kSharedBytes = Scan::kBytes + SharedPlaces::kBytes;

  // `divides`: planners may divide the measuring among them.
  LAZYROPE_DEVICE Planner(const PlanParams& params, SharedPtr memory, bool divides)
      : params_(params),
        divides_(divides),
        planner_(block_index() - first_planner(params)),
        phase_(params.phase[first_planner(params) == 0 ? 0 : 1]),
        caller_(params),
        scan_(memory),
        tiles_(memory + Scan::kBytes, phase_.scratch, planner_) {}

  // False where the step is none for Tiles.
  LAZYROPE_DEVICE bool plan() {
    RequestSpan own{};
    if constexpr (kIsPlain) own = caller_.request(thread_index() / kGroupLanes);
    const StepCopy copied = caller_.begin_copy();
    zero_counters();
    Units units{tiles_, phase_.fixed_split_blocks};
    units.num_tiles = count_tiles_each();
    const bool is_tile_each = units.num_tiles >= 0;
    if (!is_tile_each) units.num_tiles = lay_tiles();
    measure(units, lay_tile(own), is_tile_each);
    const int64 group_cost = sum_up(tiles_.cost_begin, units.num_tiles);
    caller_.copy(copied);
    units.num_heads = heads_of_an_item(units.num_tiles);
    units.num_groups = kIsPlain ? phase_.most_groups : params_.num_kv_heads / units.num_heads;
    if (kIsPlain && group_cost * units.num_groups >= kMostSharedCost) return false;
    units.group_cost = static_cast<Tiles::Cost>(group_cost);
    units.per_group = units.num_tiles;
    if (units.has_parts())
      units.per_group = static_cast<int32>(sum_up(tiles_.part_begin, units.num_tiles));
    const CutLine<Units> line(phase_, units);
    if constexpr (kIsPlain) {
      write(line);
    } else {
      Deal<Spec, Units> deal(phase_, units);
      const Queue<Spec, Units> queue(phase_, units);
      const Way way = choose(deal, queue);
      write(Chosen{deal, queue, line, way});
    }
    return true;
  }

 private:
  // Of those that plan the same phase.
  LAZYROPE_DEVICE static int32 first_planner(const PlanParams& params) {
    static_assert(kPlanPhases == 2);
    return block_index() < params.num_planners ? 0 : params.num_planners;
  }

  struct Laid {
    TileRows rows;
    TileKeys keys;
  };

  enum class Way { kDealt, kQueued, kCut };

  struct Chosen {
    const Deal<Spec, Units>& deal;
    const Queue<Spec, Units>& queue;
    const CutLine<Units>& line;
    Way way;

    LAZYROPE_DEVICE int32 num_items() const {
      return way == Way::kDealt    ? deal.num_items()
             : way == Way::kQueued ? queue.num_items()
                                   : line.num_items();
    }
    LAZYROPE_DEVICE void describe(Item& item, int32 index) const {
      if (way == Way::kDealt)
        deal.describe(item, index);
      else if (way == Way::kQueued)
        queue.describe(item, index);
      else
        line.describe(item, index);
    }
  };

  LAZYROPE_DEVICE Way choose(Deal<Spec, Units>& deal, const Queue<Spec, Units>& queue) const {
    if (deal.is_even(scan_)) return Way::kDealt;
    bar_sync();  // the scan's memory is free again
    if (!queue.is_apt(scan_)) return deal.is_fair() ? Way::kDealt : Way::kCut;
    queue.sort();
    return Way::kQueued;
  }

  template <class Items>
  LAZYROPE_DEVICE void write(const Items& items) const {
    ItemWriter<Spec, Items>(caller_, phase_, items).write(planner_, params_.num_planners);
  }

  // Of a unit on average, so that merging them is cheap; where there would be more, items have
  // fewer heads.
  static constexpr int32 kMostParts = 4;

  LAZYROPE_DEVICE void zero_counters() const {
#pragma unroll 1
    for (int32 i = planner_ * Spec::kThreads + thread_index(); i < phase_.num_counters;
         i += params_.num_planners * Spec::kThreads)
      st_global(phase_.work.counters + i, uint32{0});
  }

  // Packed rows of a request per KV head, or 0 where another attend kernel serves it.
  LAZYROPE_DEVICE int32 rows_of(int32 num_tokens) const {
    const int32 rows = num_tokens * Spec::kGroupSize;
    return rows >= phase_.min_rows && rows <= phase_.max_rows ? rows : 0;
  }

  // Where there are few requests and each is a tile, but for some behind them that ask nothing, as
  // decode's are: how many, and tiles need not be laid before they are measured. Else -1. Every
  // warp finds the same, each of its lanes by two requests.
  LAZYROPE_DEVICE int32 count_tiles_each() const {
    static_assert(kTilesAtOnce == 2 * kWarpThreads);
    if (!kIsPlain || caller_.num_requests() > kTilesAtOnce) return -1;
    const int32 first = rows_of(caller_.num_tokens(lane_index()));
    const int32 second = rows_of(caller_.num_tokens(kWarpThreads + lane_index()));
    const uint32 of_first = vote_sync_ballot(first > 0);
    const uint32 of_second = vote_sync_ballot(second > 0);
    if (vote_sync_any(larger(first, second) > phase_.tile_rows.value)) return -1;
    const bool are_first = (of_first & (of_first + 1)) == 0 && (of_second & (of_second + 1)) == 0;
    if (!are_first || (of_second > 0 && ~of_first > 0)) return -1;
    return count_ones(of_first) + count_ones(of_second);
  }

  LAZYROPE_DEVICE Laid lay_tile(const RequestSpan& request) const {
    return {{request.token, 0, rows_of(request.num_tokens()), 1},
            {0, 0, request.segment, request.segment_end}};
  }

  // A thread a request: the rows of its tiles. Returns the number of tiles, never more than the
  // step has room for.
  LAZYROPE_DEVICE int32 lay_tiles() const {
    const int32 max_tiles = phase_.scratch.max_tiles;
    int32 passed = 0;
#pragma unroll 1
    for (int32 first = 0; first < caller_.num_requests(); first += Spec::kThreads) {
      const RequestSpan request = caller_.request(first + thread_index());
      const int32 rows = rows_of(request.num_tokens());
      // Too many for an int32 together are none that there is room for.
      const CtaSums sums = scan_.sums(smaller(ceil_div(rows, phase_.tile_rows), kMostOfThread));
      lay_tiles_of(request, rows, passed + smaller(sums.before, max_tiles - passed));
      bar_sync();
      passed += smaller(sums.all, max_tiles - passed);
    }
    return passed;
  }

  // Of what threads sum up together.
  static constexpr int32 kMostOfThread = 0x7fffffff / Spec::kThreads;

  LAZYROPE_DEVICE void lay_tiles_of(const RequestSpan& request, int32 rows, int32 tile) const {
    const int32 request_tiles = ceil_div(rows, phase_.tile_rows);
#pragma unroll 1
    for (int32 row = 0; row < rows && tile < phase_.scratch.max_tiles;
         row += phase_.tile_rows.value, ++tile) {
      tiles_.rows.set(tile, TileRows{request.token, row,
                                     smaller(rows - row, phase_.tile_rows.value), request_tiles});
      tiles_.keys.set(tile, TileKeys{0, 0, request.segment, request.segment_end});
    }
  }

  // As many as have room for their rows together in a tile, unless that leaves too few units.
  LAZYROPE_DEVICE int32 heads_of_an_item(int32 num_tiles) const {
    int32 heads = phase_.max_heads;
    if (kIsPlain || heads == phase_.min_heads) return heads;
    int32 most_rows = 1;
#pragma unroll 1
    for (int32 i = thread_index(); i < caller_.num_requests(); i += Spec::kThreads)
      most_rows =
          larger(most_rows, smaller(rows_of(caller_.num_tokens(i)), phase_.tile_rows.value));
    most_rows = scan_.max(most_rows);
    while (heads > phase_.min_heads &&
           (heads * most_rows > phase_.tile_rows.value ||
            num_tiles * (params_.num_kv_heads / heads) * kMostParts < phase_.work.num_ctas))
      heads /= 2;
    return heads;
  }

  // By all lanes, before one of them writes what the tile's rows see.
  LAZYROPE_DEVICE Laid read(int32 tile, bool exists) const {
    Laid laid{};
    if (exists) laid = {tiles_.rows.get(tile), tiles_.keys.get(tile)};
    bar_warp_sync();
    return laid;
  }

  // All tiles, if there are many together with the other planners. Where none has been laid, each
  // group of lanes is given its own.
  LAZYROPE_DEVICE void measure(const Units& units, const Laid& given, bool is_given) const {
    const PlanNotes notes(phase_.scratch, params_.num_planners);
    bool is_shared = divides_ && notes.exist() && units.num_tiles > kTilesAtOnce;
    bool is_done = false;
#pragma unroll 1
    while (!is_done) {
      measure_tiles(units, notes, is_shared, given, is_given);
      bar_sync();
      if (!is_shared) return;
      is_shared = false;
      is_done = scan_.max(thread_index() == 0 && notes.wait() ? 1 : 0) != 0;
      bar_sync();
    }
#pragma unroll 1
    for (int32 tile = thread_index(); tile < units.num_tiles; tile += Spec::kThreads)
      keep(units, tile, {tiles_.rows.get(tile), tiles_.keys.get(tile)}, notes.read(tile));
  }

  // Its own or all tiles, a few lanes each: rows' positions, the blocks they see.
  LAZYROPE_DEVICE void measure_tiles(const Units& units, const PlanNotes& notes, bool is_shared,
                                     const Laid& given, bool is_given) const {
    const int32 first_tile = is_shared ? planner_ : 0;
    const int32 step = is_shared ? params_.num_planners : 1;
    constexpr int32 kTiles = kWarpThreads / kGroupLanes;
#pragma unroll 1
    for (int32 first = warp_index() * kTiles;
         vote_sync_any(first_tile + first * step < units.num_tiles);
         first += Spec::kThreads / kGroupLanes) {
      const int32 tile = first_tile + (first + lane_index() / kGroupLanes) * step;
      const bool exists = tile < units.num_tiles;
      const auto laid = is_given ? (exists ? given : Laid{}) : read(tile, exists);
      const SegmentGroup<Mask> segments(caller_, phase_.block_keys, laid.keys.segment,
                                        laid.keys.segment_end);
      PositionRange queries;
      const SeenSegments seen = segments.look([&] { return queries = positions_of(laid.rows); });
      if (!exists || group_lane() != 0) continue;
      const TileNote note = {seen.blocks,   seen.segments, seen.first,
                             queries.first, queries.last,  {}};
      if (is_shared)
        notes.write(tile, note);
      else
        keep(units, tile, laid, note);
    }
  }

  // What is found of a tile, and what it costs.
  LAZYROPE_DEVICE void keep(const Units& units, int32 tile, Laid laid, const TileNote& note) const {
    const int32 request_tiles = laid.rows.num_blocks;
    laid.rows.num_blocks = note.blocks;
    tiles_.rows.set(tile, laid.rows);
    tiles_.keys.set(tile, TileKeys{note.first_position, note.last_position, note.first_segment,
                                   laid.keys.segment_end});
    if (units.has_parts())
      measure_parts(tile, note.blocks, request_tiles);
    else
      tiles_.cost_begin.set(tile, tile_cost(phase_, note.blocks, note.segments));
  }

  LAZYROPE_DEVICE void measure_parts(int32 tile, int32 blocks, int32 request_tiles) const {
    const int32 of_part = fixed_part_blocks(blocks, phase_.fixed_split_blocks,
                                            most_fixed_parts(phase_, request_tiles));
    const int32 parts = larger(ceil_div(blocks, larger(of_part, 1)), 1);
    tiles_.part_begin.set(tile, parts);
    tiles_.cost_begin.set(tile, parts * part_cost(phase_, of_part));
  }

  LAZYROPE_DEVICE PositionRange positions_of(const TileRows& rows) const {
    PositionRange range = {kLastPosition, kFirstPosition};
    const int32 first = rows.query_token + rows.first_row / Spec::kGroupSize;
    const int32 end = rows.query_token + ceil_div(rows.first_row + rows.num_rows, Spec::kGroupSize);
#pragma unroll 1
    for (int32 token = first + group_lane(); vote_sync_any(token < end); token += kGroupLanes) {
      if (token >= end) continue;
      const int32 position = caller_.position(token);
      range = {smaller(range.first, position), larger(range.last, position)};
    }
#pragma unroll
    for (int mask = kGroupLanes / 2; mask > 0; mask /= 2)
      range = {smaller(range.first, shfl_sync_bfly(range.first, mask)),
               larger(range.last, shfl_sync_bfly(range.last, mask))};
    return range;
  }

  // A column's values become sums of those before; behind the last there is that of all.
  template <template <class> class Column, class T>
  LAZYROPE_DEVICE int64 sum_up(const Column<T>& column, int32 count) const {
    int64 passed = 0;
#pragma unroll 1
    for (int32 first = 0; first < count; first += Spec::kThreads) {
      const int32 i = first + thread_index();
      const int32 value = i < count ? static_cast<int32>(column.get(i)) : 0;
      const CtaSums sums = scan_.sums(value);
      if (i < count) column.set(i, static_cast<T>(passed + sums.before));
      passed += sums.all;
      if (i == count - 1) column.set(count, static_cast<T>(passed));
      bar_sync();
    }
    return passed;
  }

  const PlanParams& params_;
  bool divides_;
  int32 planner_;
  PlanPhase phase_;  // in registers: its place in the parameters is not known before
  CallerStep caller_;
  Scan scan_;
  Tiles tiles_;
};

}  // namespace lazyrope
