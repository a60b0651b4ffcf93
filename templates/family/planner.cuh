// The planner: turns the caller's metadata into a step's segments, and into items for one attend
// kernel.
//
// Every tile of query rows and so many KV heads make a unit, which sees so many blocks of keys.
// Units laid end to end by cost (so much an item, a block, a segment) form a line, and
// each CTA of the attend kernel gets an equal length of it: the tail of a unit, some whole units,
// the head of another. A unit cut by k boundaries has k + 1 parts: ops/split_tile.cuh. The line has
// all units of the same heads behind one another, so that CTAs read a token's heads, neighbours in
// memory, at the same time. Where parts are fixed, each is a unit, and boundaries lie between
// units. Where whole units can be dealt out about equally, prefill does that instead: CTAs that run
// at the same time then have the same keys, which the L2 cache holds, and there is nothing to
// merge.
//
// What takes time is the way to memory, so that it is gone three times only: for what there is of
// each request, for segments, which by then are in a cache, and for page numbers, likewise. All
// else is in registers and shared memory. Several CTAs plan the same and write different items:
// nobody waits for another CTA.
#pragma once

#include "family/plan_items.cuh"

namespace lazyrope {

template <class Spec, class Tiles>
class Planner {
  using Mask = typename Spec::Mask;
  using Scan = CtaScan<Spec::kThreads>;
  using Bounds = Boundaries<Spec::kMaxBoundaries>;

 public:
  static constexpr int kSharedBytes = Scan::kBytes + Bounds::kBytes + SharedTiles::kBytes;

  LAZYROPE_DEVICE Planner(const PlanParams& params, SharedPtr memory)
      : params_(params),
        planner_(block_index() - first_planner(params)),
        phase_(params.phase[first_planner(params) == 0 ? 0 : 1]),
        caller_(params),
        scan_(memory),
        boundaries_(memory + Scan::kBytes),
        tiles_(memory + Scan::kBytes + Bounds::kBytes, phase_.scratch, planner_) {}

  LAZYROPE_DEVICE void plan() {
    const RequestSpan request = caller_.request(thread_index());
    caller_.copy();
    zero_counters();
    const int32 num_tiles = lay_tiles(request);
    const int32 num_heads = heads_of_an_item(num_tiles);
    Units<Tiles> units{tiles_, phase_.fixed_split_blocks, num_tiles, num_heads,
                       params_.num_kv_heads / num_heads};
    measure_tiles(num_tiles);
    bar_sync();
    units.group_cost = sum_up(tiles_.cost_begin, num_tiles);
    units.per_group = num_tiles;
    if (phase_.fixed_split_blocks > 0)
      units.per_group = static_cast<int32>(sum_up(tiles_.part_begin, num_tiles));
    const Deal deal(phase_.work.num_ctas, units.count());
    const bool is_dealt = deals_well(units, deal);
    int32 num_others = larger(deal.num_rounds() - 1, 0) * deal.num_ctas;
    if (!is_dealt) {
      place_boundaries(units);
      bar_sync();
      num_others = rank_boundaries();
    }
    ItemWriter<Spec, Tiles>(caller_, phase_, units, boundaries_, is_dealt)
        .write(num_others, planner_, params_.num_planners);
  }

 private:
  // Of those that plan the same phase.
  LAZYROPE_DEVICE static int32 first_planner(const PlanParams& params) {
    static_assert(kPlanPhases == 2);
    return block_index() < params.num_planners ? 0 : params.num_planners;
  }

  static constexpr int32 kSegmentCost = kBlockCost / 4;
  // Of a unit on average, so that merging them is cheap; where there would be more, items have
  // fewer heads.
  static constexpr int32 kMostParts = 4;

  static constexpr int32 kTileLanes = 8;  // that measure a tile
  static constexpr int32 kAtOnce = 4;     // segments that each of them asks for

  LAZYROPE_DEVICE void zero_counters() const {
#pragma unroll 1
    for (int32 i = planner_ * Spec::kThreads + thread_index(); i < phase_.num_counters;
         i += params_.num_planners * Spec::kThreads)
      st_global(phase_.work.counters + i, uint32{0});
  }

  // Packed rows of a request per KV head, or 0 where another attend kernel serves it.
  LAZYROPE_DEVICE int32 rows_of(const RequestSpan& request) const {
    const int32 rows = (request.token_end - request.token) * Spec::kGroupSize;
    return rows >= phase_.min_rows && rows <= phase_.max_rows ? rows : 0;
  }

  // A thread a request, of which it has the first: the rows of its tiles. Returns the number of
  // tiles, never more than the step has room for.
  LAZYROPE_DEVICE int32 lay_tiles(RequestSpan request) const {
    int64 passed = 0;
#pragma unroll 1
    for (int32 first = 0; first < caller_.num_requests(); first += Spec::kThreads) {
      if (first > 0) request = caller_.request(first + thread_index());
      const int32 rows = rows_of(request);
      const int64 before =
          scan_.sum_before(ceil_div(rows, phase_.tile_rows), caller_.num_requests() - first);
      lay_tiles_of(request, rows, passed + before);
      bar_sync();
      passed += scan_.total();
    }
    return static_cast<int32>(smaller(passed, static_cast<int64>(phase_.scratch.max_tiles)));
  }

  LAZYROPE_DEVICE void lay_tiles_of(const RequestSpan& request, int32 rows,
                                    int64 first_tile) const {
#pragma unroll 1
    for (int32 row = 0; row < rows && first_tile < phase_.scratch.max_tiles;
         row += phase_.tile_rows.value, ++first_tile) {
      const auto tile = static_cast<int32>(first_tile);
      tiles_.rows.set(tile,
                      TileRows{request.token, row, smaller(rows - row, phase_.tile_rows.value), 0});
      tiles_.keys.set(tile, TileKeys{0, 0, request.segment, request.segment_end});
    }
  }

  // As many as have room for their rows together in a tile, unless that leaves too few units.
  LAZYROPE_DEVICE int32 heads_of_an_item(int32 num_tiles) const {
    int32 heads = phase_.max_heads;
    if (heads == 1) return 1;
    int32 most_rows = 1;
#pragma unroll 1
    for (int32 i = thread_index(); i < caller_.num_requests(); i += Spec::kThreads)
      most_rows = larger(most_rows, smaller(rows_of(caller_.request(i)), phase_.tile_rows.value));
    most_rows = scan_.max(most_rows);
    while (heads > 1 &&
           (heads * most_rows > phase_.tile_rows.value ||
            num_tiles * (params_.num_kv_heads / heads) * kMostParts < phase_.work.num_ctas))
      heads /= 2;
    return heads;
  }

  // What a tile's rows see of its request's segments.
  struct Seen {
    int32 blocks;
    int32 segments;
    int32 first;  // segment
  };

  // A few lanes a tile: its rows' positions, the blocks they see, the cost.
  LAZYROPE_DEVICE void measure_tiles(int32 num_tiles) const {
    constexpr int32 kTiles = kWarpThreads / kTileLanes;
#pragma unroll 1
    for (int32 first = warp_index() * kTiles; first < num_tiles;
         first += Spec::kThreads / kTileLanes) {
      const int32 tile = first + lane_index() / kTileLanes;
      const bool exists = tile < num_tiles;
      TileRows rows{};
      TileKeys keys{};
      if (exists) {
        rows = tiles_.rows.get(tile);
        keys = tiles_.keys.get(tile);
      }
      const Batch batch(caller_, keys.segment + lane_index() % kTileLanes, keys.segment_end);
      const PositionRange queries = positions_of(rows);
      const Seen seen = look(queries, batch, keys.segment_end);
      bar_warp_sync();  // all lanes have read what one now writes
      if (!exists || lane_index() % kTileLanes != 0) continue;
      rows.num_blocks = seen.blocks;
      tiles_.rows.set(tile, rows);
      tiles_.keys.set(tile, TileKeys{queries.first, queries.last, seen.first, keys.segment_end});
      const int32 parts = num_parts(seen.blocks);
      tiles_.part_begin.set(tile, parts);
      tiles_.cost_begin.set(tile, static_cast<int64>(parts) * phase_.item_cost +
                                      static_cast<int64>(seen.blocks) * kBlockCost +
                                      static_cast<int64>(seen.segments) * kSegmentCost);
    }
  }

  LAZYROPE_DEVICE int32 num_parts(int32 blocks) const {
    if (phase_.fixed_split_blocks == 0 || blocks == 0) return 1;
    return ceil_div(blocks, fixed_part_blocks(blocks, phase_.fixed_split_blocks));
  }

  LAZYROPE_DEVICE PositionRange positions_of(const TileRows& rows) const {
    PositionRange range = {kLastPosition, kFirstPosition};
    const int32 first = rows.query_token + rows.first_row / Spec::kGroupSize;
    const int32 end = rows.query_token + ceil_div(rows.first_row + rows.num_rows, Spec::kGroupSize);
#pragma unroll 1
    for (int32 token = first + lane_index() % kTileLanes; token < end; token += kTileLanes) {
      const int32 position = caller_.position(token);
      range = {smaller(range.first, position), larger(range.last, position)};
    }
#pragma unroll
    for (int mask = kTileLanes / 2; mask > 0; mask /= 2)
      range = {smaller(range.first, shfl_sync_bfly(range.first, mask)),
               larger(range.last, shfl_sync_bfly(range.last, mask))};
    return range;
  }

  // The segments that a lane asks for together: `first` and every kTileLanes-th.
  struct Batch {
    int32 first;
    SegmentSpan span[kAtOnce] = {};

    LAZYROPE_DEVICE Batch(const CallerStep& caller, int32 segment, int32 segment_end)
        : first(segment) {
#pragma unroll
      for (int32 i = 0; i < kAtOnce; ++i) {
        if (first + i * kTileLanes >= segment_end) break;
        span[i] = caller.span(first + i * kTileLanes);
      }
    }
  };

  LAZYROPE_DEVICE Seen look(PositionRange queries, Batch batch, int32 segment_end) const {
    Seen seen = {0, 0, segment_end};
#pragma unroll 1
    while (batch.first < segment_end) {
#pragma unroll
      for (int32 i = 0; i < kAtOnce; ++i) {
        const int32 segment = batch.first + i * kTileLanes;
        if (segment >= segment_end) break;
        const int32 blocks =
            visible_segment<Mask>(batch.span[i].slots(), queries).blocks(phase_.block_keys);
        if (blocks > 0)
          seen = {seen.blocks + blocks, seen.segments + 1, smaller(seen.first, segment)};
      }
      batch = Batch(caller_, batch.first + kAtOnce * kTileLanes, segment_end);
    }
#pragma unroll
    for (int mask = kTileLanes / 2; mask > 0; mask /= 2)
      seen = {seen.blocks + shfl_sync_bfly(seen.blocks, mask),
              seen.segments + shfl_sync_bfly(seen.segments, mask),
              smaller(seen.first, shfl_sync_bfly(seen.first, mask))};
    return seen;
  }

  // A column's values become sums of those before; behind the last there is that of all.
  template <template <class> class Column, class T>
  LAZYROPE_DEVICE int64 sum_up(const Column<T>& column, int32 count) const {
    int64 passed = 0;
#pragma unroll 1
    for (int32 first = 0; first < count; first += Spec::kThreads) {
      const int32 i = first + thread_index();
      const int64 value = i < count ? column.get(i) : 0;
      const int64 before = passed + scan_.sum_before(value, count - first);
      if (i < count) column.set(i, static_cast<T>(before));
      if (i == count - 1) column.set(count, static_cast<T>(before + value));
      bar_sync();
      passed += scan_.total();
    }
    return passed;
  }

  // Whether no CTA would get much more than its share, and parts would not be too short.
  LAZYROPE_DEVICE bool deals_well(const Units<Tiles>& units, const Deal& deal) const {
    constexpr int32 kMostRounds = 64;
    constexpr int32 kLoss = 8;  // one part in so many
    if (phase_.may_deal == 0 || phase_.fixed_split_blocks > 0 || deal.num_rounds() > kMostRounds)
      return false;
    const int64 total = units.group_cost * units.num_groups;
    const int64 least = static_cast<int64>(phase_.min_split_blocks) * kBlockCost;
    if (deal.num_parts > 1 && total < least * deal.num_parts * deal.num_units) return false;
    int64 most = 0;
#pragma unroll 1
    for (int32 cta = thread_index(); cta < deal.num_ctas; cta += Spec::kThreads)
      most = larger(most, dealt_cost(units, deal, cta));
    const int64 most_of_all = scan_.max(static_cast<int32>(smaller(most, int64{0x7fffffff})));
    return most_of_all * deal.num_ctas <= total + total / kLoss;
  }

  LAZYROPE_DEVICE int64 dealt_cost(const Units<Tiles>& units, const Deal& deal, int32 cta) const {
    int64 cost = 0;
#pragma unroll 1
    for (int32 round = 0; round < deal.num_rounds(); ++round) {
      const Deal::Part dealt = deal.at(cta, round);
      if (dealt.unit >= deal.num_units) break;
      const int32 tile = dealt.unit % units.per_group;
      const auto of_unit =
          static_cast<int32>(tiles_.cost_begin.get(tile + 1) - tiles_.cost_begin.get(tile));
      cost += ceil_div(of_unit, deal.num_parts);
    }
    return cost;
  }

  // A thread a boundary: the unit and block at which each CTA begins.
  LAZYROPE_DEVICE void place_boundaries(const Units<Tiles>& units) const {
    const int32 num_ctas = phase_.work.num_ctas;
    const int32 shares = num_shares(units);
#pragma unroll 1
    for (int32 cta = thread_index(); cta <= num_ctas; cta += Spec::kThreads)
      boundaries_.place.set(cta,
                            cta < shares ? place_at(units, cta, shares) : Place{units.count(), 0});
  }

  LAZYROPE_DEVICE int32 num_shares(const Units<Tiles>& units) const {
    const int64 line = units.group_cost * units.num_groups;
    const int64 least = static_cast<int64>(phase_.min_split_blocks) * kBlockCost;
    if (line >= least * phase_.work.num_ctas) return phase_.work.num_ctas;
    return static_cast<int32>((line + least - 1) / least);
  }

  // The block at cta / shares of the line; the unit's own ends where those are near, or parts are
  // fixed. With c the cost of a group, q = c / shares and p = c mod shares, the point lies r /
  // shares of a group's cost into a group, which is q r + p r / shares: no product or quotient of
  // big numbers.
  LAZYROPE_DEVICE Place place_at(const Units<Tiles>& units, int32 cta, int32 shares) const {
    const auto divisor = static_cast<uint32>(shares);
    const uint32 point = static_cast<uint32>(cta) * static_cast<uint32>(units.num_groups);
    const uint32 group = point / divisor;
    const uint32 rest = point - group * divisor;
    const auto cost = static_cast<uint64>(units.group_cost);
    const uint64 share = cost / divisor;
    const auto left = static_cast<uint32>(cost - share * divisor);
    const auto into_group = static_cast<int64>(share * rest + left * rest / divisor);
    const auto cost_begin = [&](int32 tile) { return tiles_.cost_begin.get(tile); };
    const int32 tile = upper_bound(units.num_tiles, into_group, cost_begin) - 1;
    const int64 begin = cost_begin(tile);
    const int32 blocks = tiles_.rows.get(tile).num_blocks;
    // What an item costs beside its blocks is spent before the first of them. Each fixed part has
    // its own.
    const int64 before = phase_.fixed_split_blocks > 0 ? 0 : phase_.item_cost;
    const auto into_blocks = static_cast<uint64>(larger(into_group - begin - before, int64{0}));
    const int64 all_blocks = larger(cost_begin(tile + 1) - begin - before, int64{1});
    const auto block = static_cast<int32>(into_blocks * static_cast<uint64>(blocks) /
                                          static_cast<uint64>(all_blocks));
    return place_near(static_cast<int32>(group) * units.per_group, tile, block, blocks);
  }

  LAZYROPE_DEVICE Place place_near(int32 first_unit, int32 tile, int32 block, int32 blocks) const {
    if (phase_.fixed_split_blocks > 0) {
      const int32 part = fixed_part_blocks(blocks, phase_.fixed_split_blocks);
      return {first_unit + tiles_.part_begin.get(tile) + (block + part / 2) / part, 0};
    }
    if (block < phase_.min_split_blocks) return {first_unit + tile, 0};
    if (blocks - block < phase_.min_split_blocks) return {first_unit + tile + 1, 0};
    return {first_unit + tile, block};
  }

  // What a boundary adds to the sums over boundaries, all in one number.
  static constexpr int32 kRankBits = 40;  // from there on
  static constexpr int32 kCutsBits = 52;
  static_assert(Spec::kMaxBoundaries <= 1 << 11);

  // Boundaries that coincide leave CTAs without work; ranks count the others. Returns how many
  // items there are beside the first of each CTA.
  LAZYROPE_DEVICE int32 rank_boundaries() const {
    const int32 count = phase_.work.num_ctas + 1;
    int64 passed = 0;
#pragma unroll 1
    for (int32 first = 0; first < count; first += Spec::kThreads) {
      const int32 cta = first + thread_index();
      const Step step = cta < count ? step_at(cta) : Step{};
      const int64 before = passed + scan_.sum_before(step.sums, count - first);
      if (cta < count) rank(cta, step, before);
      bar_sync();
      passed += scan_.total();
    }
    return num_others(passed);
  }

  struct Step {
    int64 sums;  // what the boundary adds
    bool is_new;
    bool is_first_cut;  // of those inside a unit
    bool is_last_cut;
  };

  LAZYROPE_DEVICE Step step_at(int32 cta) const {
    const bool is_first = cta == 0;
    const bool is_last = cta == phase_.work.num_ctas;
    const Place here = boundaries_.place.get(cta);
    const Place before = is_first ? here : boundaries_.place.get(cta - 1);
    const Place next = is_last ? here : boundaries_.place.get(cta + 1);
    Step step{};
    step.is_new = !(here == before);
    step.is_first_cut = here.block > 0 && !(before.block > 0 && before.unit == here.unit);
    step.is_last_cut = here.block > 0 && !(next.block > 0 && next.unit == here.unit);
    step.sums = (static_cast<int64>(step.is_first_cut ? 1 : 0) << kCutsBits) +
                (static_cast<int64>(step.is_new ? 1 : 0) << kRankBits) +
                larger(num_items_between(here, next) - 1, 0);
    return step;
  }

  LAZYROPE_DEVICE void rank(int32 cta, const Step& step, int64 before) const {
    constexpr int32 kRanks = 1 << (kCutsBits - kRankBits);
    const int32 rank = static_cast<int32>(before >> kRankBits) % kRanks + (step.is_new ? 1 : 0);
    const int32 cuts = static_cast<int32>(before >> kCutsBits) - (step.is_first_cut ? 0 : 1);
    boundaries_.standing.set(cta, Standing{num_others(before), rank});
    boundaries_.cuts_of.set(cta, cuts);
    if (step.is_first_cut) boundaries_.first_rank.set(cuts, rank);
    if (step.is_last_cut) boundaries_.last_rank.set(cuts, rank);
  }

  // Of items beside the first of each CTA, as far as there is room for them.
  LAZYROPE_DEVICE int32 num_others(int64 sums) const {
    const int64 most = phase_.scratch.max_items - phase_.work.num_ctas;
    return static_cast<int32>(smaller(sums & ((int64{1} << kRankBits) - 1), most));
  }

  const PlanParams& params_;
  int32 planner_;
  PlanPhase phase_;  // in registers: its place in the parameters is not known before
  CallerStep caller_;
  Scan scan_;
  Bounds boundaries_;
  Tiles tiles_;
};

}  // namespace lazyrope
