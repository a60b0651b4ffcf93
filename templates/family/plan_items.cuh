// The planner's last stage: items, in parts of 16 bytes, eight lanes an item. What the CTAs of a
// phase have found is the same; each writes some of the items.
#pragma once

#include "family/plan_inputs.cuh"
#include "family/plan_units.cuh"

namespace lazyrope {

template <class Spec, class Tiles>
class ItemWriter {
  using Mask = typename Spec::Mask;
  using Bounds = Boundaries<Spec::kMaxBoundaries>;

 public:
  LAZYROPE_DEVICE ItemWriter(const CallerStep& caller, const PlanPhase& phase,
                             const Units<Tiles>& units, const Bounds& boundaries, bool is_dealt)
      : caller_(caller),
        phase_(phase),
        units_(units),
        boundaries_(boundaries),
        is_dealt_(is_dealt) {}

  // Every num_planners-th of all items. The first items of CTAs may begin inside of a tile, which
  // is looked for; of the others the CTA is looked for. So the warps take turns to and fro: those
  // with some of the former have few of the latter.
  LAZYROPE_DEVICE void write(int32 num_others, int32 planner, int32 num_planners) const {
    constexpr int32 kWarps = Spec::kThreads / kWarpThreads;
    const int32 num_items = phase_.work.num_ctas + num_others;
    const int32 round = lane_index() / kLanes;
    const int32 place = round % 2 == 0 ? warp_index() : kWarps - 1 - warp_index();
#pragma unroll 1
    for (int32 first = 0; first * num_planners + planner < num_items;
         first += kWarps * kItemsOfWarp) {
      const int32 index = (first + round * kWarps + place) * num_planners + planner;
      if (vote_sync_any(index < num_items)) write_item(index, index < num_items, num_others);
    }
  }

 private:
  static constexpr int32 kLanes = sizeof(Item) / sizeof(Chunk);
  static constexpr int32 kItemsOfWarp = kWarpThreads / kLanes;
  static constexpr int32 kPageWords = (sizeof(Item) - sizeof(ItemStart::page)) / 4;

  // A block of a segment.
  struct BlockPlace {
    int32 segment;
    int32 block;
  };

  LAZYROPE_DEVICE void write_item(int32 index, bool exists, int32 num_others) const {
    Item item{};
    if (exists) describe(item, index, num_others);
    const BlockPlace place = find_start(item);
    Chunk pages{};
    if (item.extent.num_blocks > 0) pages = start(item, place);
    if (exists)
      st_global(reinterpret_cast<Chunk*>(phase_.work.items + index) + part(), chunk(item, pages));
  }

  LAZYROPE_DEVICE static int32 part() { return lane_index() % kLanes; }
  // Which of the item's pages a word of the lane's part is; below 0 before the first.
  LAZYROPE_DEVICE static int32 run(int32 word) { return part() * 4 + word - kPageWords; }

  // All but where it starts; nothing if its CTA has no work.
  LAZYROPE_DEVICE void describe(Item& item, int32 index, int32 num_others) const {
    if (is_dealt_)
      describe_dealt(item, index);
    else
      describe_cut(item, index, num_others);
  }

  // Item i is that of CTA i % num_ctas in round i / num_ctas. Parts of a unit have results and a
  // counter by its number, of which there are enough: parts of all units are no more than CTAs.
  LAZYROPE_DEVICE void describe_dealt(Item& item, int32 index) const {
    const Deal deal(phase_.work.num_ctas, units_.count());
    const int32 cta = index % deal.num_ctas;
    const int32 round = index / deal.num_ctas;
    const Deal::Part dealt = deal.at(cta, round);
    if (dealt.unit >= deal.num_units) return;
    const Unit unit = units_.get(dealt.unit);
    // Blocks are few enough that no part is empty where another has two.
    const int32 parts = larger(smaller(deal.num_parts, unit.end_block), 1);
    if (dealt.part >= parts) return;
    // end_block * part / parts, of numbers that may be too big to multiply.
    const int32 whole = unit.end_block / parts;
    const int32 rest = unit.end_block - whole * parts;
    const auto begin_of = [&](int32 part) { return whole * part + rest * part / parts; };
    fill(item, unit, begin_of(dealt.part), begin_of(dealt.part + 1),
         deal.has(cta, round + 1) ? index + deal.num_ctas : -1);
    item.split = {dealt.part, parts, dealt.unit * deal.num_parts, dealt.unit};
  }

  LAZYROPE_DEVICE void fill(Item& item, const Unit& unit, int32 first, int32 end,
                            int32 next) const {
    const TileRows rows = units_.tiles.rows.get(unit.tile);
    const TileKeys keys = units_.tiles.keys.get(unit.tile);
    item.extent = {end - first, rows.num_rows, keys.first_position, keys.last_position};
    item.rows = {rows.query_token, rows.first_row, unit.group * units_.num_heads, units_.num_heads};
    item.keys = {keys.segment, keys.segment_end, first, next};
  }

  LAZYROPE_DEVICE void describe_cut(Item& item, int32 index, int32 num_others) const {
    const int32 num_ctas = phase_.work.num_ctas;
    const auto num_before = [&](int32 cta) { return boundaries_.standing.get(cta).num_others; };
    const int32 other = index - num_ctas;
    const int32 cta = other < 0 ? index : upper_bound(num_ctas, other, num_before) - 1;
    const int32 nth = other < 0 ? 0 : other - num_before(cta) + 1;
    const Place begin = boundaries_.place.get(cta);
    const Place end = boundaries_.place.get(cta + 1);
    const int32 count = num_items_between(begin, end);
    if (nth >= count) return;
    const int32 next = num_before(cta) + nth;
    const Unit unit = units_.get(begin.unit + nth);
    const int32 first = unit.first_block + (nth == 0 ? begin.block : 0);
    const int32 last = begin.unit + nth == end.unit ? end.block : unit.end_block;
    fill(item, unit, first, last, nth + 1 < count && next < num_others ? num_ctas + next : -1);
    item.split = units_.fixed_split_blocks > 0
                     ? fixed_split(unit, begin.unit + nth)
                     : split(cta, nth == 0 && begin.block > 0, begin.unit + nth == end.unit);
  }

  // Boundaries of ranks r .. r + k - 1 cut a unit into k + 1 parts, which use results 2 r to 2 r +
  // k and counter r: those of another unit's boundaries lie beyond.
  LAZYROPE_DEVICE ItemSplit split(int32 cta, bool is_tail, bool is_head) const {
    if (!is_tail && !is_head) return {0, 1, 0, 0};
    const int32 boundary = is_tail ? cta : cta + 1;
    const int32 cuts = boundaries_.cuts_of.get(boundary);
    const int32 lowest = boundaries_.first_rank.get(cuts);
    return {is_tail ? boundaries_.standing.get(cta).rank - lowest + 1 : 0,
            boundaries_.last_rank.get(cuts) - lowest + 2, 2 * lowest, lowest};
  }

  // Each unit has a result of its own; the counters of whole tiles lie behind those of their parts.
  LAZYROPE_DEVICE ItemSplit fixed_split(const Unit& unit, int32 index) const {
    if (unit.num_parts == 1) return {0, 1, 0, 0};
    const int32 first_counter = (phase_.num_counters + phase_.work.num_ctas) / 2;
    const int32 partial = index - unit.part;
    return {unit.part, unit.num_parts, partial, first_counter + partial};
  }

  // Where the first block of each of the warp's items lies: at the beginning of a tile the first of
  // its first segment, elsewhere the whole warp looks for it, item after item.
  LAZYROPE_DEVICE BlockPlace find_start(const Item& item) const {
    BlockPlace place = {item.keys.segment, 0};
    const uint32 inside = vote_sync_ballot(item.keys.first_block > 0);
#pragma unroll 1
    for (int32 owner = 0; owner < kWarpThreads; owner += kLanes) {
      if ((inside >> owner & 1) == 0) continue;
      const auto of_owner = [&](int32 value) { return shfl_sync_idx(value, owner); };
      const PositionRange queries = {of_owner(item.extent.first_position),
                                     of_owner(item.extent.last_position)};
      const BlockPlace found =
          find_block(queries, {of_owner(item.keys.segment), 0}, of_owner(item.keys.segment_end),
                     of_owner(item.keys.first_block));
      if (lane_index() / kLanes * kLanes == owner) place = found;
    }
    return place;
  }

  // One warp: a block counted from the beginning of a segment, before `segment_end`.
  LAZYROPE_DEVICE BlockPlace find_block(PositionRange queries, BlockPlace from, int32 segment_end,
                                        int32 block) const {
#pragma unroll 1
    for (; from.segment < segment_end; from.segment += kWarpThreads) {
      const int32 mine = from.segment + lane_index();
      const int32 blocks =
          mine < segment_end
              ? visible_segment<Mask>(caller_.span(mine).slots(), queries).blocks(phase_.block_keys)
              : 0;
      const int32 through = warp_prefix_sum(blocks);
      const int32 total = shfl_sync_idx(through, kWarpThreads - 1);
      if (block < total) {
        const int32 owner = warp_upper_bound(through, block);
        return {from.segment + owner, block - shfl_sync_idx(through - blocks, owner)};
      }
      block -= total;
    }
    return from;  // not reached: the tile has that block
  }

  // Completes all but the pages, and returns those of the lane's part.
  LAZYROPE_DEVICE Chunk start(Item& item, BlockPlace place) const {
    const VisibleSegment found = visible_segment<Mask>(
        caller_.segment(place.segment), {item.extent.first_position, item.extent.last_position});
    const int32 slot = found.first_slot() + place.block * phase_.block_keys.value;
    Chunk pages{};
#pragma unroll
    for (int32 word = 0; word < 4; ++word) {
      const int32 run_slot = slot + run(word) * kRunSlots;
      if (run(word) >= 0 && run_slot < found.end)
        pages.word[word] = static_cast<uint32>(caller_.page(found.record, run_slot));
    }
    item.start.base = found.record.base;
    item.start.position = found.record.origin + slot;
    item.start.begin = larger(found.record.begin - slot, 0);
    item.start.end = found.end - slot;
    item.start.slot = caller_.slot_in_page(slot);
    item.start.page_size = caller_.page_size();
    return pages;
  }

  // The lane's part.
  LAZYROPE_DEVICE static Chunk chunk(const Item& item, const Chunk& pages) {
    const auto& [extent, rows, keys, split, start] = item;
    const Chunk all[] = {
        chunk_of(extent.num_blocks, extent.num_rows, extent.first_position, extent.last_position),
        chunk_of(rows.query_token, rows.first_row, rows.kv_head, rows.num_heads),
        chunk_of(keys.segment, keys.segment_end, keys.first_block, keys.next),
        chunk_of(split.index, split.count, split.partial, split.counter),
        chunk_of(start.base, start.position, start.begin, start.end),
        chunk_of(start.slot, start.page_size, 0, 0)};
    Chunk chunk = pages;
#pragma unroll
    for (int32 i = 0; i < 6; ++i)
      if (part() == i) chunk = all[i];
#pragma unroll
    for (int32 word = 0; word < 4; ++word)
      if (run(word) >= 0) chunk.word[word] = pages.word[word];
    return chunk;
  }

  const CallerStep& caller_;
  const PlanPhase& phase_;
  const Units<Tiles>& units_;
  const Bounds& boundaries_;
  bool is_dealt_;
};

}  // namespace lazyrope
