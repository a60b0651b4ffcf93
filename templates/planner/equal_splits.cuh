// Equal splits, a part of the Stream-K schedule for steps of few units and short shares: each unit
// is cut into equal KV splits of at most L blocks, one split for each CTA. L is the least number of
// blocks for which there are enough CTAs.
//
// Input: Units of at most kTilesAtOnce tiles without fixed splits. Output: describe() gives a split
// by its place in its group of heads: the splits of the first tile come first.
//
// All lanes of a warp take part. Each lane holds two tiles and tries an L of its own. The
// beginnings of the tiles' splits then replace the prefix sums of costs, which are the warp's own
// where a step has few tiles (sum_of_few()). No lane reads these sums at the same time: the CTA has
// synchronized after other schedules have read them (CtaScan).
#pragma once

#include "ops/lanes.cuh"
#include "planner/sums.cuh"
#include "planner/units.cuh"

namespace lazyrope {

class EqualSplits {
 public:
  LAZYROPE_DEVICE EqualSplits(const PlanPhase& phase, const Units& units)
      : phase_(phase), units_(units) {}

  // Cuts the units. `shares` is the number of shares of equal cost that the step could have
  // instead. Returns false, and changes nothing, if the longest split would cost more than such a
  // share by a block and by one part in kShareTolerance, or if units must be cut although
  // may_cut is false. The step costs at most max_short_cost(), so no cost has lost bits.
  LAZYROPE_DEVICE bool cut(int32 shares, bool may_cut) {
    const int32 num_tiles = units_.num_tiles;
    if (num_tiles == 0 || num_tiles > kTilesAtOnce || units_.count() > phase_.work.num_ctas)
      return false;
    const float blocks[] = {counted_blocks(2 * lane_index()), counted_blocks(2 * lane_index() + 1)};
    // All shares together would cost this much if each cost as much as the longest split may.
    const int32 cost = units_.cost();
    const int32 limit = cost + larger(cost / kShareTolerance, kBlockCost * shares);
    const int32 most = divide(limit, kBlockCost * shares).whole;
    const int32 own_length = most - lane_index() * (1 + most / kLengthsTried);
    const Totals totals = totals_of(blocks, rcp(larger(own_length, 1)));
    const bool is_allowed = own_length >= min_length(blocks);
    const bool fits = is_allowed && totals.splits * units_.num_groups <= phase_.work.num_ctas;
    // A lane after the first that does not fit has a smaller L and does not fit either.
    const int32 fitting = count_ones(vote_sync_ballot(fits));
    if (fitting == 0) return false;
    const int32 length = shfl_sync_idx(own_length, fitting - 1);
    const bool is_cut = shfl_sync_idx(totals.splits, fitting - 1) > num_tiles;
    const int32 of_blocks = units_.group_cost - num_tiles * phase_.work_tile_cost;
    const bool is_near = static_cast<int64>(length * shares) * of_blocks <=
                         static_cast<int64>(limit) * totals.blocks;
    if (!is_near || (is_cut && !may_cut)) return false;
    splits_per_group_ = store_few_sums(allowed_splits(blocks[0], rcp(length)),
                                       allowed_splits(blocks[1], rcp(length)), begin(), num_tiles);
    search_step_ = search_step<kGroupLanes>(num_tiles);
    return true;
  }

  LAZYROPE_DEVICE int32 splits_per_group() const { return splits_per_group_; }

  // Describes a split except for its start. The lanes of a group have the same split; where
  // `exists` is false, they describe nothing.
  LAZYROPE_DEVICE void describe(WorkTile& work_tile, int32 group, int32 in_group,
                                bool exists) const {
    const auto ends_after = [&](int32 tile) { return begin().get(tile + 1) > in_group; };
    const int32 tile =
        lower_bound_by_lanes<kGroupLanes>(units_.num_tiles, search_step_, ends_after);
    if (!exists) return;
    const int32 first_split = begin().get(tile);
    const int32 count = begin().get(tile + 1) - first_split;
    const int32 index = in_group - first_split;
    // The first splits have one block more than the last, if they are not all alike.
    const Quotient blocks = divide(units_.tiles.rows.get(tile).num_blocks, count);
    const int32 first = index * blocks.whole + smaller(index, blocks.rest);
    const int32 length = blocks.whole + (index < blocks.rest ? 1 : 0);
    units_.describe(work_tile, {group, tile, 0}, first, first + length);
    const int32 share = group * splits_per_group_ + first_split;
    work_tile.split =
        count == 1 ? KvSplit{0, 1, 0, 0} : KvSplit{index, count, 2 * share + 1, share};
    work_tile.num_combiners = count - 1;
  }

 private:
  // L may be this much before lanes try only every second length, and so on.
  static constexpr int32 kLengthsTried = 64;

  // Totals are the splits of all tiles if none has more blocks than the lane's L, and all blocks.
  struct Totals {
    int32 splits;
    int32 blocks;
  };

  LAZYROPE_DEVICE const Column<int32>& begin() const { return units_.tiles.cost_begin; }

  // Returns the blocks of a tile. A tile without blocks counts as one, because its rows are
  // written, too. A tile that does not exist has none.
  LAZYROPE_DEVICE float counted_blocks(int32 tile) const {
    return static_cast<float>(
        tile < units_.num_tiles ? larger(units_.tiles.rows.get(tile).num_blocks, 1) : 0);
  }

  // Returns the least L. Where a unit would have very many splits of the least length, to combine
  // them takes longer than a CTA needs for twice the blocks.
  LAZYROPE_DEVICE int32 min_length(const float (&blocks)[2]) const {
    const int32 min = phase_.min_split_blocks;
    const auto many = static_cast<float>(kMaxSingleTileSplits * min);
    return vote_sync_any(blocks[0] > many || blocks[1] > many) ? 2 * min : min;
  }

  LAZYROPE_DEVICE static float rcp(int32 number) {
    return rcp_approx_ftz_f32(static_cast<float>(number));
  }

  // Returns the totals for the lane's L, whose reciprocal is given. Each step of the loop takes the
  // tiles of four lanes.
  LAZYROPE_DEVICE Totals totals_of(const float (&blocks)[2], float rcp_length) const {
    float splits = 0.0f, all = 0.0f;
#pragma unroll 1
    for (int32 lane = 0; 2 * lane < units_.num_tiles; lane += 4) {
#pragma unroll
      for (int32 i = 0; i < 8; ++i) {
        const float of_tile = shfl_sync_idx(blocks[i % 2], lane + i / 2);
        splits += divided_up(of_tile, rcp_length);
        all += of_tile;
      }
    }
    return {static_cast<int32>(splits), static_cast<int32>(all)};
  }

  // Returns blocks / length, rounded up. It is exact for up to 2^20 blocks, where the errors of the
  // product are less than half a block. The sum with 2^23 rounds to an integer, which takes less
  // time than a conversion.
  LAZYROPE_DEVICE static float divided_up(float blocks, float rcp_length) {
    constexpr float kToInteger = 8388608.0f;
    return blocks * rcp_length + (0.5f - 0.5f * rcp_length) + kToInteger - kToInteger;
  }

  // Returns the splits of a tile: as few as L allows, and no more than have the least length.
  LAZYROPE_DEVICE int32 allowed_splits(float blocks, float rcp_length) const {
    const auto more = static_cast<float>(phase_.min_split_blocks - 1);
    const float most = divided_up(larger(blocks - more, 1.0f), rcp(phase_.min_split_blocks));
    const float splits = divided_up(blocks, rcp_length);
    return static_cast<int32>(most < splits ? most : splits);
  }

  const PlanPhase& phase_;
  const Units& units_;
  int32 splits_per_group_ = 0;
  int32 search_step_ = 0;
};

}  // namespace lazyrope
