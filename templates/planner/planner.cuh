// The planner kernel. It reads the caller's arrays (StepInputs) and writes the plan of one step:
// the segment records and query positions that attend reads, and the work tiles of each attend
// kernel (PlanPhase: decode or prefill).
//
// The grid has num_planners CTAs of kPlanThreads threads for each phase. All CTAs of a phase
// compute the same plan. CTA i writes work tiles i, i + num_planners, i + 2 num_planners ...
//
// Every CTA goes through these steps:
//   1. Load. Four lanes load the ranges of one request; every warp also loads the token ranges of
//      the first 64 requests. Each thread loads the first elements that it copies for attend. The
//      attend kernel's counters are set to 0.
//   2. Make tiles (make_tiles). One thread cuts one request's packed rows into tiles. This is
//      skipped where every request is a single tile, as in decode.
//   3. Measure (measure). Four lanes find the positions of one tile's rows and count the KV blocks
//      and segments that these see. Where there are many tiles, the CTAs of a phase divide them
//      (planner/tile_exchange.cuh). The counts give the tile's cost.
//   4. Choose the number of KV heads of a work tile (find_heads).
//   5. Sum (sum_up_costs). Prefix sums of the costs and of the fixed splits give each unit its
//   place
//      in the order of units. All CTAs together copy segments and positions for attend.
//   6. Choose a schedule (choose) of the units: planner/stream_k.cuh, planner/round_robin.cuh or
//      planner/queue.cuh.
//   7. Write (planner/work_tiles.cuh). Eight lanes describe and store one work tile.
//
// A unit is one tile for one group of KV heads, or one fixed KV split of it. Units are ordered by
// group, then by tile: CTAs then read the heads of a token, which are neighbours in memory, at the
// same time. Decode takes Stream-K: each CTA gets an equal share of the cost, and a unit cut by k
// boundaries has k + 1 KV splits (ops/combine_scheduler.cuh). With fixed splits the boundaries are
// between units. Prefill prefers whole units, by round-robin or from a queue: CTAs that run at the
// same time then read the same keys from L2, and little is left to combine.
//
// Memory latency takes most of the kernel's time, so only four loads depend on one another: the
// ranges of requests, their segments, the segments of work tiles, and page numbers. All but the
// first hit a cache (prefetch_segments, prefetch_pages). All other data is in registers and shared
// memory.
//
// Shared memory holds one word per warp for CtaScan, 65 sums per warp (few_costs_), and the table
// of tiles (PlanTable). A step with room for more than kSharedTiles tiles has its table in global
// memory.
//
// All warps have the same role. Barriers of the CTA are bar.sync 0 of kPlanThreads threads; those
// of a warp are bar.warp.sync. "The scan's memory" is the words of CtaScan.
//
// | barrier               | who arrives        | who waits | what it protects                     |
// |-----------------------|--------------------|-----------|--------------------------------------|
// | CtaScan               | all threads        | the CTA   | the scan's memory, after each store  |
// | choose(),             | all threads        | the CTA   | the scan's memory, until it has been |
// | find_heads(),         |                    |           | read                                 |
// | choose_order(),       |                    |           |                                      |
// | split_remainder()     |                    |           |                                      |
// | make_tiles()          | all threads        | the CTA   | the same, and the tiles of the table |
// | measure(), first      | all threads        | the CTA   | tiles measured by this CTA           |
// | measure(), second     | all threads        | the CTA   | the scan's memory, until it has been |
// |                       |                    |           | read                                 |
// | TileExchange::wait()  | thread 0 of each   | thread 0, | measurements of all CTAs of a phase, |
// |                       | CTA, at a counter  | polling   | in global memory                     |
// | table_sum()           | all threads        | the CTA   | the scan's memory and the sums       |
// | QueueSchedule::sort() | all threads        | the CTA   | the sorted order                     |
// | read()                | 32 lanes           | the warp  | a tile's record, until all lanes     |
// |                       |                    |           | have read it                         |
// | store_few_sums()      | 32 lanes           | the warp  | the warp's sums                      |
#pragma once

#include "planner/queue.cuh"
#include "planner/round_robin.cuh"
#include "planner/stream_k.cuh"
#include "planner/sums.cuh"
#include "planner/tile_exchange.cuh"
#include "planner/work_tiles.cuh"

namespace lazyrope {

template <class Spec>
class Planner {
  using Mask = typename Spec::Mask;
  using Scan = CtaScan<Spec::kThreads>;
  static constexpr bool kHasStates = Spec::kMemories > 0;

 public:
  static_assert(Scan::kBytes == kPlanScanBytes);

  // The CTA is CTA `cta` of the num_ctas that plan a step.
  LAZYROPE_DEVICE Planner(const PlanParams& params, SharedPtr memory, int32 cta, int32 num_ctas)
      : params_(params),
        planner_(cta < params.num_planners ? cta : cta - params.num_planners),
        phase_(params.phase[cta < params.num_planners ? 0 : 1]),
        counts_(Spec::kCascade ? params.shared_counts : nullptr),
        caller_(params, cta, num_ctas, counts_),
        scan_(memory),
        shared_(generic(memory)),
        tiles_(shared_ + kPlanTableAt, phase_.scratch, planner_),
        few_costs_(shared_ + (Scan::kBytes + warp_index() * kFewCostsBytes)) {}

  LAZYROPE_DEVICE void plan() {
    // These constants let the compiler remove code that no phase needs. Code that is in no cache
    // takes time even when it is skipped.
    if constexpr (!Spec::kFixedSplits) phase_.fixed_split_blocks = 0;
    if constexpr (!Spec::kJoinsHeads) phase_.max_heads = phase_.min_heads;
    const RequestRange own = caller_.request(thread_index() / kTileLanes);
    const LaneTokens tokens = {caller_.tokens(lane_index()),
                               caller_.tokens(kWarpThreads + lane_index())};
    caller_.prefetch_segments();
    const StepCopy copied = caller_.template begin_copy<kHasStates>();
    zero_counters();
    Units units{tiles_, phase_.fixed_split_blocks};
    units.num_tiles = count_single_tile_requests(tokens);
    const bool has_one_tile_each = units.num_tiles >= 0;
    if (!has_one_tile_each) units.num_tiles = make_tiles();
    measure(units, make_tile(own), has_one_tile_each);
    find_heads(units);
    const TableSum costs = sum_up_costs(units.num_tiles);
    caller_.template copy<Spec::kMeasuresPageMass, kHasStates>(copied);
    units.group_cost = costs.total;
    units.lost_bits = costs.lost_bits;
    units.units_per_group =
        units.has_fixed_splits()
            ? sum_up(tiles_.splits, tiles_.split_begin, units.num_tiles, kMaxStepCost).total
            : units.num_tiles;
    write(units);
  }

 private:
  // A tile as make_tiles() leaves it in the table, or as measured.
  struct TileRecord {
    TileRows rows;
    TileKeys keys;
  };

  // The rule that assigns units to CTAs.
  enum class Schedule { kRoundRobin, kQueue, kStreamK };

  struct ChosenSchedule {
    const RoundRobinSchedule<Spec>& round_robin;
    const QueueSchedule<Spec>& queue;
    const StreamKSchedule<Spec>& stream_k;
    Schedule schedule;

    LAZYROPE_DEVICE int32 num_work_tiles() const {
      return schedule == Schedule::kStreamK      ? stream_k.num_work_tiles()
             : schedule == Schedule::kRoundRobin ? round_robin.num_work_tiles()
                                                 : queue.num_work_tiles();
    }
    LAZYROPE_DEVICE void describe(WorkTile& work_tile, int32 index) const {
      if (schedule == Schedule::kStreamK)
        stream_k.describe(work_tile, index);
      else if (schedule == Schedule::kRoundRobin)
        round_robin.describe(work_tile, index);
      else
        queue.describe(work_tile, index);
    }
  };

  // Prefers round-robin where it is balanced, then the queue, then an only nearly balanced
  // round-robin. Stream-K is the schedule of all other steps. All threads of the CTA take part.
  LAZYROPE_DEVICE Schedule choose(RoundRobinSchedule<Spec>& round_robin,
                                  const QueueSchedule<Spec>& queue) const {
    if (phase_.allows_round_robin == 0) return Schedule::kStreamK;
    if (round_robin.is_balanced(scan_)) return Schedule::kRoundRobin;
    bar_sync();  // the scan's memory is free again
    if (!queue.pays_off(scan_))
      return round_robin.is_nearly_balanced() ? Schedule::kRoundRobin : Schedule::kStreamK;
    queue.sort();
    return Schedule::kQueue;
  }

  LAZYROPE_DEVICE void write(const Units& units) const {
    RoundRobinSchedule<Spec> round_robin(phase_, units);
    const QueueSchedule<Spec> queue(phase_, units);
    StreamKSchedule<Spec> stream_k(phase_, units);
    if (phase_.allows_round_robin == 0 && first_work_tile_of_warp() >= stream_k.num_work_tiles())
      return;
    const Schedule schedule = choose(round_robin, queue);
    if (schedule == Schedule::kStreamK) stream_k.partition();
    WorkTileWriter<Spec, ChosenSchedule>(caller_, phase_, {round_robin, queue, stream_k, schedule})
        .write(planner_, params_.num_planners);
  }

  // Returns the first work tile that the warp writes. A warp that writes none leaves early, because
  // its computation slows down the others.
  LAZYROPE_DEVICE int32 first_work_tile_of_warp() const {
    return warp_index() * (kWarpThreads / kGroupLanes) * params_.num_planners + planner_;
  }

  // Each warp sums few tiles by itself, so that no warp waits for another.
  LAZYROPE_DEVICE TableSum sum_up_costs(int32 num_tiles) {
    if (num_tiles <= kTilesAtOnce) {
      const int32 all = sum_of_few(tiles_.cost, few_costs_, num_tiles);
      if (all <= phase_.max_group_cost) {
        tiles_.cost_begin = few_costs_;
        return {all, 0};
      }
    }
    return sum_up(tiles_.cost, tiles_.cost_begin, num_tiles, phase_.max_group_cost);
  }
  LAZYROPE_DEVICE TableSum sum_up(const Column<int32>& values, const Column<int32>& sums,
                                  int32 count, int32 max) const {
    return table_sum<Spec::kThreads>(scan_, values, sums, count, max);
  }

  LAZYROPE_DEVICE void zero_counters() const {
#pragma unroll 1
    for (int32 i = planner_ * Spec::kThreads + thread_index(); i < phase_.num_counters;
         i += params_.num_planners * Spec::kThreads)
      st_global(phase_.work.counters + i, uint32{0});
  }

  // Returns a request's packed rows per KV head, or 0 if the other attend kernel serves it.
  LAZYROPE_DEVICE int32 rows_of(int32 num_tokens) const {
    const int32 rows = num_tokens * Spec::kGroupSize;
    return rows >= phase_.min_rows && rows <= phase_.max_rows ? rows : 0;
  }

  // The token ranges of the lane's two requests, where there are at most kTilesAtOnce.
  struct LaneTokens {
    TokenRange first;
    TokenRange second;
  };

  // Returns the number of tiles where there are few requests and each is a single tile, as in
  // decode; later requests may have no tokens. Tiles are then measured without being made first.
  // Returns -1 otherwise. Every warp returns the same.
  LAZYROPE_DEVICE int32 count_single_tile_requests(const LaneTokens& tokens) const {
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

  LAZYROPE_DEVICE TileRecord make_tile(const RequestRange& request) const {
    return {{request.token, 0, rows_of(request.num_tokens()), 1},
            {0, 0, request.segment, request.segment_end}};
  }

  // Makes the tiles of all requests, one thread a request. Returns the number of tiles, at most as
  // many as the step has room for.
  LAZYROPE_DEVICE int32 make_tiles() const {
    const int32 max_tiles = phase_.scratch.max_tiles;
    int32 passed = 0;
#pragma unroll 1
    for (int32 first = 0; first < caller_.num_requests(); first += Spec::kThreads) {
      const RequestRange request = caller_.request(first + thread_index());
      const int32 rows = rows_of(request.num_tokens());
      // The limit keeps the CTA's sum in an int32. A step has no room for as many tiles anyway.
      const CtaSums sums = scan_.sums(smaller(ceil_div(rows, phase_.tile_rows), kMaxPerThread));
      make_request_tiles(request, rows, passed + smaller(sums.before, max_tiles - passed));
      bar_sync();
      passed += smaller(sums.all, max_tiles - passed);
    }
    return passed;
  }

  // The largest summand of a thread for which the CTA's sum fits an int32.
  static constexpr int32 kMaxPerThread = 0x7fffffff / Spec::kThreads;

  LAZYROPE_DEVICE void make_request_tiles(const RequestRange& request, int32 rows,
                                          int32 tile) const {
    const int32 request_tiles = ceil_div(rows, phase_.tile_rows);
#pragma unroll 1
    for (int32 row = 0; row < rows && tile < phase_.scratch.max_tiles;
         row += phase_.tile_rows.value, ++tile) {
      tiles_.rows.set(tile, TileRows{request.token, row,
                                     smaller(rows - row, phase_.tile_rows.value), request_tiles});
      tiles_.keys.set(tile, TileKeys{0, 0, request.segment, request.segment_end});
    }
  }

  // Chooses the number of KV heads of a work tile. It is doubled while the rows of all heads fit
  // one tile and enough units are left. All threads of the CTA take part.
  LAZYROPE_DEVICE void find_heads(Units& units) const {
    units.num_heads = phase_.min_heads;
    units.num_groups = phase_.max_head_groups;
    if (phase_.max_heads == phase_.min_heads) return;
    int32 max_tile_rows = 1;
#pragma unroll 1
    for (int32 i = thread_index(); i < caller_.num_requests(); i += Spec::kThreads)
      max_tile_rows = larger(max_tile_rows,
                             smaller(rows_of(caller_.tokens(i).count()), phase_.tile_rows.value));
    max_tile_rows = scan_.max(max_tile_rows);
    bar_sync();  // the scan's memory is free again
#pragma unroll 1
    while (units.num_heads < phase_.max_heads &&
           2 * units.num_heads * max_tile_rows <= phase_.tile_rows.value &&
           units.num_tiles * (units.num_groups / 2) * kMaxSplitsPerUnit >= phase_.work.num_ctas) {
      units.num_heads *= 2;
      units.num_groups /= 2;
    }
  }

  // Every lane reads the tile before one lane overwrites the record with the measurement.
  LAZYROPE_DEVICE TileRecord read(int32 tile, bool exists) const {
    TileRecord record{};
    if (exists) record = {tiles_.rows.get(tile), tiles_.keys.get(tile)};
    bar_warp_sync();
    return record;
  }

  // Measures all tiles. Where there are many, this CTA measures its own and reads the others'
  // measurements. If these do not come in time, it measures all tiles itself. With has_first_record
  // no tiles were made, and first_record is the tile of each group of lanes.
  LAZYROPE_DEVICE void measure(const Units& units, const TileRecord& first_record,
                               bool has_first_record) const {
    const TileExchange exchange(phase_.scratch, params_.num_planners);
    bool is_shared = exchange.exist() && units.num_tiles > kTilesAtOnce;
    bool is_done = false;
#pragma unroll 1
    while (!is_done) {
      measure_tiles(units, exchange, is_shared, first_record, has_first_record);
      bar_sync();
      if (!is_shared) return;
      is_shared = false;
      const bool are_there = warp_uniform(thread_index() == 0 && exchange.wait());
      is_done = scan_.max(are_there ? 1 : 0) != 0;
      bar_sync();
    }
#pragma unroll 1
    for (int32 tile = thread_index(); tile < units.num_tiles; tile += Spec::kThreads)
      record_tile(units, tile, {tiles_.rows.get(tile), tiles_.keys.get(tile)}, exchange.read(tile));
  }

  // Measures this CTA's tiles, or all of them, a few lanes each: the range of the rows' positions
  // and the blocks that the rows see.
  LAZYROPE_DEVICE void measure_tiles(const Units& units, const TileExchange& exchange,
                                     bool is_shared, const TileRecord& first_record,
                                     bool has_first_record) const {
    const int32 first_tile = is_shared ? planner_ : 0;
    const int32 step = is_shared ? params_.num_planners : 1;
    constexpr int32 kTiles = kWarpThreads / kTileLanes;
#pragma unroll 1
    for (int32 first = warp_index() * kTiles;
         vote_sync_any(first_tile + first * step < units.num_tiles);
         first += Spec::kThreads / kTileLanes) {
      const int32 tile = first_tile + (first + lane_index() / kTileLanes) * step;
      const bool exists = tile < units.num_tiles;
      const auto record =
          has_first_record ? (exists ? first_record : TileRecord{}) : read(tile, exists);
      const SegmentGroup<Mask, kTileLanes, kHasStates> segments(
          caller_, phase_.block_keys, record.keys.segment, record.keys.segment_end);
      PositionRange queries;
      const VisibleCounts counts =
          segments.count_visible([&] { return queries = positions_of(record.rows); });
      if (!exists || group_lane<kTileLanes>() != 0) continue;
      const TileMeasurement measurement = {counts.blocks, counts.segments, counts.first,
                                           queries.first, queries.last,    {}};
      if (is_shared)
        exchange.write(tile, measurement);
      else
        record_tile(units, tile, record, measurement);
    }
  }

  // Stores a tile's measurement and cost in the table. Until then, rows.num_blocks is the number of
  // tiles of its request.
  LAZYROPE_DEVICE void record_tile(const Units& units, int32 tile, TileRecord record,
                                   const TileMeasurement& measurement) const {
    const int32 request_tiles = record.rows.num_blocks;
    record.rows.num_blocks = measurement.blocks;
    tiles_.rows.set(tile, record.rows);
    tiles_.keys.set(tile, TileKeys{measurement.first_position, measurement.last_position,
                                   measurement.first_segment, record.keys.segment_end});
    if (units.has_fixed_splits())
      measure_splits(tile, measurement.blocks, request_tiles);
    else
      tiles_.cost.set(tile, tile_cost(phase_, measurement.blocks, measurement.segments));
  }

  LAZYROPE_DEVICE void measure_splits(int32 tile, int32 blocks, int32 request_tiles) const {
    const int32 blocks_per_split = blocks_per_fixed_split(blocks, phase_.fixed_split_blocks,
                                                          max_fixed_splits(phase_, request_tiles));
    const int32 splits = larger(divide_up(blocks, larger(blocks_per_split, 1)), 1);
    tiles_.splits.set(tile, splits);
    tiles_.cost.set(tile, splits * split_cost(phase_, blocks_per_split));
  }

  // Returns the range of the positions of a tile's rows. A single token's position is returned as
  // it is loaded: any arithmetic here would wait for the load. In a shared step the range is one in
  // which every mask shows all keys.
  LAZYROPE_DEVICE PositionRange positions_of(const TileRows& rows) const {
    if (counts_ != nullptr) return {kFirstPosition, kLastPosition};
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
  PlanPhase phase_;  // a copy in registers: its offset in the parameters depends on the CTA
  const SharedCounts* counts_;
  CallerInputs caller_;
  Scan scan_;
  GenericPtr shared_;  // generic address, converted once because the conversion is slow
  PlanTable tiles_;
  Column<int32> few_costs_;
};

template <class Spec>
LAZYROPE_DEVICE void plan_step(const PlanParams& params, SharedPtr memory) {
  Planner<Spec>(params, memory, block_index(), grid_blocks()).plan();
}

// One instance of the code plans both steps.
template <class Spec>
LAZYROPE_DEVICE void plan_step(const CascadePlanParams& params, SharedPtr memory) {
  const bool is_shared = block_index() >= params.step_ctas;
  const int32 first = is_shared ? params.step_ctas : 0;
  const int32 end = is_shared ? grid_blocks() : params.step_ctas;
  Planner<Spec>(is_shared ? params.shared : params.step, memory, block_index() - first, end - first)
      .plan();
}

}  // namespace lazyrope
