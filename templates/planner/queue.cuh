// Queue schedule: at run time each CTA of the attend kernel takes whole units from an atomic queue,
// one as soon as it has room for it. CTAs then end at about the same time, however much units
// differ in cost.
//
// Input: Units of a prefill step. Output: describe() gives work tile i, the i-th unit of the queue.
// CTA c starts with work tile c and takes the others from the queue.
//
// CTAs that run at the same time have units that are close in the queue: all tiles of one group of
// heads, then those of the next, so that their keys stay in L2. Within a group the costliest tiles
// come first. The last groups (tail_groups_) are ordered together, costliest tiles first, because
// the units that are taken last should be short.
#pragma once

#include "planner/units.cuh"

namespace lazyrope {

template <class Spec>
class QueueSchedule {
 public:
  LAZYROPE_DEVICE QueueSchedule(const PlanPhase& phase, const Units& units)
      : phase_(phase), units_(units), tail_groups_(smaller(kTailGroups, units.num_groups)) {}

  // Returns true if the queue pays off. The costliest unit must exceed the average by a quarter,
  // but the average CTA must have the cost of kMinQueueUnits such units: otherwise the CTAs would
  // wait for it. The average unit must have kMinQueueBlocks blocks: to take shorter ones from the
  // queue costs more time than it saves. All threads of the CTA take part.
  LAZYROPE_DEVICE bool pays_off(const CtaScan<Spec::kThreads>& scan) const {
    if (phase_.has_queue == 0 || units_.has_fixed_splits()) return false;
    int32 longest = 0;
#pragma unroll 1
    for (int32 tile = thread_index(); tile < units_.num_tiles; tile += Spec::kThreads)
      longest = larger(longest, units_.cost_of(tile));
    const int64 max = scan.max(longest);
    return max * kMinQueueUnits * phase_.work.num_ctas <= units_.cost() &&
           kQueueSpreadDivisor * max * units_.count() >= int64{kMinQueueSpread} * units_.cost() &&
           int64{kMinQueueBlocks} * kBlockCost * units_.count() <= units_.unscaled_cost();
  }

  // Sorts the tiles by cost, in the column split_begin, which is unused without fixed splits. Call
  // it before describe(). All threads of the CTA take part. If there are more than kMaxSortedTiles
  // tiles, it sorts nothing, and the order is from the last tile to the first.
  LAZYROPE_DEVICE void sort() const {
    if (!is_sorted()) return;
#pragma unroll 1
    for (int32 tile = thread_index(); tile < units_.num_tiles; tile += Spec::kThreads)
      units_.tiles.split_begin.set(rank_of(tile), tile);
    bar_sync();
  }

  LAZYROPE_DEVICE int32 num_work_tiles() const { return units_.count(); }

  // Describes a work tile except for its start. An index past the last unit gives an empty work
  // tile.
  LAZYROPE_DEVICE void describe(WorkTile& work_tile, int32 index) const {
    if (index >= num_work_tiles()) return;
    const Unit unit = units_.whole_unit(coord_of(index));
    units_.describe(work_tile, unit.coord, 0, unit.end_block);
    work_tile.keys.next = -num_work_tiles();
    work_tile.split = {0, 1, 0, 0};
  }

 private:
  LAZYROPE_DEVICE bool is_sorted() const { return units_.num_tiles <= kMaxSortedTiles; }

  // Returns the number of tiles that cost more than this one, or the same with a lower number.
  LAZYROPE_DEVICE int32 rank_of(int32 tile) const {
    const int32 own = units_.cost_of(tile);
    int32 rank = 0;
#pragma unroll 4
    for (int32 i = 0; i < units_.num_tiles; ++i) {
      const int32 cost = units_.cost_of(i);
      rank += cost > own || (cost == own && i < tile) ? 1 : 0;
    }
    return rank;
  }

  LAZYROPE_DEVICE UnitCoord coord_of(int32 index) const {
    const int32 first_group = units_.num_groups - tail_groups_;
    const int32 head_units = first_group * units_.num_tiles;
    const bool is_tail = index >= head_units;
    const auto [whole, rest] =
        is_tail ? divide(index - head_units, tail_groups_) : divide(index, units_.num_tiles);
    return {is_tail ? first_group + rest : whole, tile_at(is_tail ? whole : rest), 0};
  }
  LAZYROPE_DEVICE int32 tile_at(int32 rank) const {
    return is_sorted() ? units_.tiles.split_begin.get(rank) : units_.num_tiles - 1 - rank;
  }

  const PlanPhase& phase_;
  const Units& units_;
  int32 tail_groups_;  // last groups of heads, interleaved in the queue
};

}  // namespace lazyrope
