// The planner: turns the caller's metadata into a step's segments, and into items for one attend
// kernel.
//
// Every tile of query rows and so many KV heads make a unit, which sees so many blocks of keys.
// Units laid end to end by cost (so much an item, a block, a segment) form a line, of which each
// CTA of the attend kernel gets an equal length (planner/cut.cuh). A unit cut by k boundaries
// has k + 1 parts: ops/split_tile.cuh. The line has all units of the same heads behind one another,
// so that CTAs read a token's heads, neighbours in memory, at the same time. Where parts are fixed,
// each is a unit, and boundaries lie between units. Where whole units can be dealt out about
// equally, prefill does that instead (planner/deal.cuh), or has CTAs take them from a queue
// (planner/queue.cuh): CTAs that run at the same time then have the same keys, which the L2
// cache holds, and there is next to nothing to merge.
//
// What takes time is the way to memory, so that it is gone four times only: for what there is of
// each request, for segments, which by then are in a cache, and for the segments of items and their
// page numbers, likewise. All else is in registers and shared memory. Several CTAs plan the same
// and write different items; where there are many tiles, they divide the measuring.
#pragma once

#include "planner/cut.cuh"
#include "planner/deal.cuh"
#include "planner/items.cuh"
#include "planner/notes.cuh"
#include "planner/queue.cuh"
#include "planner/sums.cuh"

namespace lazyrope {

template <class Spec>
class Planner {
  using Mask = typename Spec::Mask;
  using Scan = CtaScan<Spec::kThreads>;

 public:
  // A warp's own sums over few tiles lie between the scan's memory and the table.
  static constexpr int32 kFewBytes = (kTilesAtOnce + 1) * 4;
  static constexpr int32 kTableAt = Scan::kBytes + Scan::kWarps * kFewBytes;
  static constexpr int kSharedBytes = kTableAt + plan_table_bytes(kSharedTiles);
  static_assert(kTableAt % 16 == 0);

  LAZYROPE_DEVICE Planner(const PlanParams& params, SharedPtr memory)
      : params_(params),
        planner_(block_index() - first_planner(params)),
        phase_(params.phase[first_planner(params) == 0 ? 0 : 1]),
        caller_(params),
        scan_(memory),
        shared_(generic(memory)),
        tiles_(shared_ + kTableAt, phase_.scratch, planner_),
        few_costs_(shared_ + (Scan::kBytes + warp_index() * kFewBytes)) {}

  LAZYROPE_DEVICE void plan() {
    // What no phase has, and the compiler thus leaves out: code that is in no cache takes time even
    // to be passed over.
    if constexpr (!Spec::kFixedParts) phase_.fixed_split_blocks = 0;
    if constexpr (!Spec::kJoinsHeads) phase_.max_heads = phase_.min_heads;
    const RequestSpan own = caller_.request(thread_index() / kTileLanes);
    const LaneTokens tokens = {caller_.tokens(lane_index()),
                               caller_.tokens(kWarpThreads + lane_index())};
    caller_.prefetch_segments();
    const StepCopy copied = caller_.begin_copy();
    zero_counters();
    Units units{tiles_, phase_.fixed_split_blocks};
    units.num_tiles = count_tiles_each(tokens);
    const bool is_tile_each = units.num_tiles >= 0;
    if (!is_tile_each) units.num_tiles = lay_tiles();
    measure(units, lay_tile(own), is_tile_each);
    find_heads(units);
    const TableSum costs = sum_up_costs(units.num_tiles);
    caller_.copy(copied);
    units.group_cost = costs.all;
    units.lost_bits = costs.lost_bits;
    units.per_group =
        units.has_parts()
            ? sum_up(tiles_.parts, tiles_.part_begin, units.num_tiles, kMostStepCost).all
            : units.num_tiles;
    write(units);
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
    const Deal<Spec>& deal;
    const Queue<Spec>& queue;
    const CutLine& line;
    Way way;

    LAZYROPE_DEVICE int32 num_items() const {
      return way == Way::kCut     ? line.num_items()
             : way == Way::kDealt ? deal.num_items()
                                  : queue.num_items();
    }
    LAZYROPE_DEVICE void describe(Item& item, int32 index) const {
      if (way == Way::kCut)
        line.describe(item, index);
      else if (way == Way::kDealt)
        deal.describe(item, index);
      else
        queue.describe(item, index);
    }
  };

  LAZYROPE_DEVICE Way choose(Deal<Spec>& deal, const Queue<Spec>& queue) const {
    if (phase_.may_deal == 0) return Way::kCut;
    if (deal.is_even(scan_)) return Way::kDealt;
    bar_sync();  // the scan's memory is free again
    if (!queue.is_apt(scan_)) return deal.is_fair() ? Way::kDealt : Way::kCut;
    queue.sort();
    return Way::kQueued;
  }

  LAZYROPE_DEVICE void write(const Units& units) const {
    Deal<Spec> deal(phase_, units);
    const Queue<Spec> queue(phase_, units);
    CutLine line(phase_, units);
    if (phase_.may_deal == 0 && first_item_of_warp() >= line.num_items()) return;
    const Way way = choose(deal, queue);
    if (way == Way::kCut) line.cut();
    ItemWriter<Spec, Chosen>(caller_, phase_, {deal, queue, line, way})
        .write(planner_, params_.num_planners);
  }

  // What a warp that writes nothing finds takes time from those that do.
  LAZYROPE_DEVICE int32 first_item_of_warp() const {
    return warp_index() * (kWarpThreads / kGroupLanes) * params_.num_planners + planner_;
  }

  // Of few tiles by each warp for itself, so that none waits for another.
  LAZYROPE_DEVICE TableSum sum_up_costs(int32 num_tiles) {
    if (num_tiles <= kTilesAtOnce) {
      const int32 all = sum_of_few(tiles_.cost, few_costs_, num_tiles);
      if (all <= phase_.most_cost) {
        tiles_.cost_begin = few_costs_;
        return {all, 0};
      }
    }
    return sum_up(tiles_.cost, tiles_.cost_begin, num_tiles, phase_.most_cost);
  }
  LAZYROPE_DEVICE TableSum sum_up(const Column<int32>& values, const Column<int32>& sums,
                                  int32 count, int32 most) const {
    return table_sum<Spec::kThreads>(scan_, values, sums, count, most);
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

  // Of the requests of a lane, if there are few.
  struct LaneTokens {
    TokenSpan first;
    TokenSpan second;
  };

  // Where there are few requests and each is a tile, but for some behind them that ask nothing, as
  // decode's are: how many, and tiles need not be laid before they are measured. Else -1. Every
  // warp finds the same.
  LAZYROPE_DEVICE int32 count_tiles_each(const LaneTokens& tokens) const {
    static_assert(kTilesAtOnce == 2 * kWarpThreads);
    if (caller_.num_requests() > kTilesAtOnce) return -1;
    const int32 first = rows_of(tokens.first.count());
    const int32 second = rows_of(tokens.second.count());
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

  // An item's, as many as have room for their rows together in a tile, unless that leaves too few
  // units.
  LAZYROPE_DEVICE void find_heads(Units& units) const {
    units.num_heads = phase_.min_heads;
    units.num_groups = phase_.most_groups;
    if (phase_.max_heads == phase_.min_heads) return;
    int32 most_rows = 1;
#pragma unroll 1
    for (int32 i = thread_index(); i < caller_.num_requests(); i += Spec::kThreads)
      most_rows =
          larger(most_rows, smaller(rows_of(caller_.tokens(i).count()), phase_.tile_rows.value));
    most_rows = scan_.max(most_rows);
    bar_sync();  // the scan's memory is free again
#pragma unroll 1
    while (units.num_heads < phase_.max_heads &&
           2 * units.num_heads * most_rows <= phase_.tile_rows.value &&
           units.num_tiles * (units.num_groups / 2) * kMostParts >= phase_.work.num_ctas) {
      units.num_heads *= 2;
      units.num_groups /= 2;
    }
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
    bool is_shared = notes.exist() && units.num_tiles > kTilesAtOnce;
    bool is_done = false;
#pragma unroll 1
    while (!is_done) {
      measure_tiles(units, notes, is_shared, given, is_given);
      bar_sync();
      if (!is_shared) return;
      is_shared = false;
      const bool are_there = warp_uniform(thread_index() == 0 && notes.wait());
      is_done = scan_.max(are_there ? 1 : 0) != 0;
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
    constexpr int32 kTiles = kWarpThreads / kTileLanes;
#pragma unroll 1
    for (int32 first = warp_index() * kTiles;
         vote_sync_any(first_tile + first * step < units.num_tiles);
         first += Spec::kThreads / kTileLanes) {
      const int32 tile = first_tile + (first + lane_index() / kTileLanes) * step;
      const bool exists = tile < units.num_tiles;
      const auto laid = is_given ? (exists ? given : Laid{}) : read(tile, exists);
      const SegmentGroup<Mask, kTileLanes> segments(caller_, phase_.block_keys, laid.keys.segment,
                                                    laid.keys.segment_end);
      PositionRange queries;
      const SeenSegments seen = segments.look([&] { return queries = positions_of(laid.rows); });
      if (!exists || group_lane<kTileLanes>() != 0) continue;
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
      tiles_.cost.set(tile, tile_cost(phase_, note.blocks, note.segments));
  }

  LAZYROPE_DEVICE void measure_parts(int32 tile, int32 blocks, int32 request_tiles) const {
    const int32 of_part = fixed_part_blocks(blocks, phase_.fixed_split_blocks,
                                            most_fixed_parts(phase_, request_tiles));
    const int32 parts = larger(divide_up(blocks, larger(of_part, 1)), 1);
    tiles_.parts.set(tile, parts);
    tiles_.cost.set(tile, parts * part_cost(phase_, of_part));
  }

  // Nothing is made of a single token's, as it is loaded, before something else asks for it: that
  // would wait for the load.
  LAZYROPE_DEVICE PositionRange positions_of(const TileRows& rows) const {
    const int32 begin = rows.query_token + rows.first_row / Spec::kGroupSize;
    const int32 end = rows.query_token + ceil_div(rows.first_row + rows.num_rows, Spec::kGroupSize);
    int32 first = begin < end ? caller_.position(begin) : 0;
    uint32 to_last = 0;
    if (vote_sync_any(begin + 1 < end)) {
      int32 last = first;
#pragma unroll 1
      for (int32 token = begin + group_lane<kTileLanes>(); vote_sync_any(token < end);
           token += kTileLanes) {
        if (token >= end) continue;
        const int32 position = caller_.position(token);
        first = smaller(first, position);
        last = larger(last, position);
      }
#pragma unroll
      for (int mask = kTileLanes / 2; mask > 0; mask /= 2) {
        first = smaller(first, shfl_sync_bfly(first, mask));
        last = larger(last, shfl_sync_bfly(last, mask));
      }
      to_last = static_cast<uint32>(last) - static_cast<uint32>(first);
    }
    return {first, static_cast<int32>(static_cast<uint32>(first) + to_last)};
  }

  const PlanParams& params_;
  int32 planner_;
  PlanPhase phase_;  // in registers: its place in the parameters is not known before
  CallerStep caller_;
  Scan scan_;
  GenericPtr shared_;  // its address in the generic space, which takes a while to tell
  PlanTable tiles_;
  Column<int32> few_costs_;
};

}  // namespace lazyrope
