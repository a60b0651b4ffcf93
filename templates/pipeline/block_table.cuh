// Where the KV blocks of a work tile lie: a circular table in shared memory, filled a window of
// blocks at a time and well ahead of use. The lanes of one warp find the segments of a window's
// blocks by a prefix sum, so short segments cost no more than long ones, and page numbers arrive by
// asynchronous copy. A work tile brings the pages of its first blocks, which are thus known at
// once.
#pragma once

#include "isa/async_copy.cuh"
#include "ops/query_rows.cuh"
#include "ops/segment_blocks.cuh"

namespace lazyrope {

struct BlockInfo {
  int32 base;      // of its segment
  int32 position;  // logical position of the block's slot 0
  int32 begin;     // its valid slots
  int32 end;       // a run behind the block's where its segment goes on

  // Whether the next block is another segment's.
  template <int kBlockSlots>
  LAZYROPE_DEVICE bool ends_segment() const {
    return end <= kBlockSlots;
  }
};

struct alignas(8) RunLocation {
  int32 page;
  int32 slot;  // in the page
};

// Which of a work tile's blocks a table has: of stripes of `length` blocks number `first`, first +
// step, ... `missing` blocks of stripe 0, fewer than its length, lie before the work tile.
class BlockChoice {
 public:
  LAZYROPE_DEVICE BlockChoice(int32 first, int32 step, int32 length, int32 missing)
      : packed_(first | step << 8 | length << 16 | missing << 24) {}

  // How many of blocks 0 to num_blocks - 1 are chosen.
  LAZYROPE_DEVICE int32 count(int32 num_blocks) const {
    const int32 blocks = num_blocks + missing();
    const int32 round = step() * length();
    const int32 rest = blocks % round - first() * length();
    return blocks / round * length() + smaller(larger(rest, 0), length()) - own_missing();
  }

  // The i-th that is chosen.
  LAZYROPE_DEVICE int32 block(int32 i) const {
    const int32 at = i + own_missing();
    return (at / length() * step() + first()) * length() + at % length() - missing();
  }

 private:
  LAZYROPE_DEVICE int32 first() const { return packed_ & 0xff; }
  LAZYROPE_DEVICE int32 step() const { return packed_ >> 8 & 0xff; }
  LAZYROPE_DEVICE int32 length() const { return packed_ >> 16 & 0xff; }
  LAZYROPE_DEVICE int32 missing() const { return packed_ >> 24; }
  LAZYROPE_DEVICE int32 own_missing() const { return first() == 0 ? missing() : 0; }

  int32 packed_;  // registers are few
};

// Block i of the table is the i-th chosen.
template <class Mask, int kBlockSlots, int kWindows = 2>
class BlockTable {
  static constexpr int kRuns = kBlockSlots / kRunSlots;

 public:
  static constexpr int kWindow = kWarpThreads / kRuns;  // blocks resolved at once
  static constexpr int kCapacity = kWindows * kWindow;  // blocks in the table
  static constexpr int kBytes = kCapacity * (static_cast<int>(sizeof(BlockInfo)) +
                                             kRuns * static_cast<int>(sizeof(RunLocation))) +
                                static_cast<int>(sizeof(Chunk));

  // The first that is chosen is number `first` of the table.
  LAZYROPE_DEVICE BlockTable(SharedPtr memory, BlockChoice choice, const StepView& step,
                             WorkTilePtr work_tile, int32 first = 0)
      : memory_(memory), choice_(choice), step_(step), item_(work_tile), first_(first) {}

  LAZYROPE_DEVICE BlockInfo info(int32 block) const {
    return ld_shared<BlockInfo>(info_address(block));
  }
  LAZYROPE_DEVICE RunLocation run(int32 block, int32 run) const {
    return ld_shared<RunLocation>(run_address(block, run));
  }

  // How many of the first blocks the work tile has the pages of, at most a window.
  LAZYROPE_DEVICE int32 count_prefetched(const WorkTileStart& start) const {
    const int32 num_runs = smaller(ceil_div(start.end, kRunSlots), kStartRuns);
    const int32 blocks =
        start.end <= kStartRuns * kRunSlots ? ceil_div(num_runs, kRuns) : num_runs / kRuns;
    return smaller(choice_.count(smaller(blocks, item_.extent().num_blocks)), kWindow);
  }

  // One warp: these.
  LAZYROPE_DEVICE void seed(const WorkTileStart& start, int32 num_prefetched) const {
    const int32 block = lane_index() / kRuns;
    if (block < num_prefetched) {
      const int32 slot = choice_.block(block) * kBlockSlots;
      const int32 run = lane_index() % kRuns;
      if (run == 0)
        write_info(first_ + block, start.base, start.position, start.begin, start.end, slot);
      st_shared(run_address(first_ + block, run), start_run(item_, start, slot / kRunSlots + run));
    }
  }
  // One of the runs whose pages the work tile has.
  LAZYROPE_DEVICE static RunLocation start_run(WorkTilePtr work_tile, const WorkTileStart& start,
                                               int32 run) {
    const int32 slot = run * kRunSlots;
    const PageLocation at = locate_in_pages(start.slot + slot, start.page_size);
    return {slot < start.end ? work_tile.start_page(run) : 0, at.slot};
  }

  // Where the search for the next window begins: a segment, and the work tile's block that it
  // begins with. Kept twice, by turns: other lanes may still be reading where this window's search
  // began.
  struct alignas(8) Walk {
    int32 segment;
    int32 block;
  };
  static_assert(2 * sizeof(Walk) == sizeof(Chunk));  // the table's last bytes

  // What filling a window begins with, asked for ahead: the search starts with a segment a lane.
  struct Lookup {
    Walk walk;
    SegmentRecord segment;
    const int32* pages;
    int32 page_size;
  };

  // For the work tile's first window that is searched for; whoever fills one window after the other
  // goes on with what it gives.
  LAZYROPE_DEVICE Lookup look_up_first() const {
    const WorkTileKeys keys = item_.keys();
    return look_up_from({keys.segment, -keys.first_block});
  }
  // For the window behind one that has been left.
  LAZYROPE_DEVICE Lookup look_up(int32 window) const {
    return look_up_from(ld_shared<Walk>(walk_address(window - 1)));
  }
  LAZYROPE_DEVICE void save_walk(int32 window, const Lookup& lookup) const {
    if (lane_index() == 0) st_shared(walk_address(window), lookup.walk);
  }

  // One warp fills window `window`; windows are taken in order, from 0. The page numbers are part
  // of the caller's next group of asynchronous copies. All who use the table synchronize before
  // what was filled is read, and before the next window.
  LAZYROPE_DEVICE void resolve(int32 window, Lookup lookup) const {
    const int32* page = find(window, 0, lookup);
    save_walk(window, lookup);
    if (page != nullptr) cp_async_ca_4(lane_run_address(window), page);
  }

  // The same for blocks from `first` on, whose page numbers, a lane's each, the caller place()s
  // before they are read.
  LAZYROPE_DEVICE int32 resolve_ahead(int32 window, int32 first, Lookup& lookup) const {
    const int32* page = find(window, first, lookup);
    return page == nullptr ? 0 : ld_global_nc(page);
  }
  LAZYROPE_DEVICE void store_page(int32 window, int32 first, int32 page) const {
    if (entry(window) >= first) st_shared(lane_run_address(window), page);
  }

 private:
  LAZYROPE_DEVICE Lookup look_up_from(const Walk& walk) const {
    Lookup lookup{};
    lookup.walk = walk;
    lookup.segment = load_segment(walk.segment + lane_index());
    lookup.pages = reinterpret_cast<const int32*>(
        ld_global_nc(reinterpret_cast<const uint64*>(&step_.header->pages)));
    lookup.page_size = ld_global_nc(&step_.header->page_size);
    return lookup;
  }

  LAZYROPE_DEVICE SharedPtr walk_address(int32 window) const {
    return memory_ + (kBytes - (window % 2 + 1) * static_cast<int32>(sizeof(Walk)));
  }
  LAZYROPE_DEVICE SharedPtr info_address(int32 block) const {
    return memory_ + table_index(block) * static_cast<int32>(sizeof(BlockInfo));
  }
  LAZYROPE_DEVICE SharedPtr run_address(int32 block, int32 run) const {
    return memory_ + kCapacity * static_cast<int32>(sizeof(BlockInfo)) +
           (table_index(block) * kRuns + run) * static_cast<int32>(sizeof(RunLocation));
  }
  LAZYROPE_DEVICE static int32 table_index(int32 block) {
    return static_cast<int32>(static_cast<uint32>(block) % kCapacity);
  }

  // The block that this lane fills, of whose runs it has one; none where lanes are left.
  LAZYROPE_DEVICE static int32 entry(int32 window) {
    if (kWarpThreads % kRuns != 0 && lane_index() >= kWindow * kRuns) return -1;
    return window * kWindow + lane_index() / kRuns;
  }
  LAZYROPE_DEVICE SharedPtr lane_run_address(int32 window) const {
    return run_address(entry(window), lane_index() % kRuns);
  }

  // Behind the work tile's last one without a slot: that once more, for after a branch here, where
  // a loop ends, the compiler would not know that lanes go on together.
  LAZYROPE_DEVICE SegmentRecord load_segment(int32 index) const {
    SegmentRecord record{};
    const int32 end = item_.keys().segment_end;
    const SegmentRecord* p = step_.segments + smaller(index, end - 1);
    const Chunk c = ld_global_nc(reinterpret_cast<const Chunk*>(p));
    record.base = static_cast<int32>(c.word[0]);
    record.origin = static_cast<int32>(c.word[1]);
    record.begin = static_cast<int32>(c.word[2]);
    record.end = static_cast<int32>(index < end ? c.word[3] : c.word[2]);
    record.first_page = ld_global_nc(&p->first_page);
    return record;
  }

  // Fills the infos of a window's blocks from `first` on, and the slots of their runs; returns
  // where the page number of this lane's run lies, null where the run has no slot that is read: its
  // address is formed, from 0. `lookup` is then that of the next window.
  LAZYROPE_DEVICE const int32* find(int32 window, int32 first, Lookup& lookup) const {
    const WorkTileExtent extent = item_.extent();
    const int32 segment_end = item_.keys().segment_end;
    Walk walk = lookup.walk;
    SegmentRecord record = lookup.segment;
    const int32 block = choice_.block(entry(window) - first_);
    const bool wanted = entry(window) >= first && block < extent.num_blocks;
    const int32* page = nullptr;
#pragma unroll 1
    while (true) {
      const VisibleSegment segment =
          visible_segment<Mask>(record, {extent.first_position, extent.last_position});
      const int32 blocks = segment.blocks(kBlockSlots);
      const int32 blocks_through = prefix_sum(blocks);
      const int32 total = shfl_sync_idx(blocks_through, kWarpThreads - 1);
      const int32 target = block - walk.block;
      const int32 owner = upper_bound_lane(blocks_through, target);
      const int32 owner_first = shfl_sync_idx(blocks_through - blocks, owner);
      const VisibleSegment found = from_lane(segment, owner);
      // Below 0: found in the 32 segments before.
      if (wanted && target >= 0 && target < total)
        page = write(entry(window), found, target - owner_first, lookup);
      if (!vote_sync_any(wanted && target >= total)) break;
      walk.segment += kWarpThreads;
      walk.block += total;
      if (warp_uniform(walk.segment >= segment_end)) break;
      record = load_segment(walk.segment + lane_index());
    }
    lookup.walk = walk;
    lookup.segment = record;
    return page;
  }

  // A block that begins at `slot`, counted as position, begin and end of its segment are.
  LAZYROPE_DEVICE void write_info(int32 entry, int32 base, int32 position, int32 begin, int32 end,
                                  int32 slot) const {
    const int32 rest = end - slot;
    st_shared(info_address(entry), BlockInfo{base, position + slot, larger(begin - slot, 0),
                                             rest <= kBlockSlots ? rest : kBlockSlots + kRunSlots});
  }

  LAZYROPE_DEVICE const int32* write(int32 entry, const VisibleSegment& segment,
                                     int32 block_in_segment, const Lookup& lookup) const {
    const SegmentRecord& record = segment.record;
    const int32 run = lane_index() % kRuns;
    const int32 slot = segment.first_slot() + block_in_segment * kBlockSlots;
    if (run == 0) write_info(entry, record.base, record.origin, record.begin, segment.end, slot);
    const int32 run_slot = slot + run * kRunSlots;
    const PageLocation at = locate_in_pages(run_slot, lookup.page_size);
    st_shared(run_address(entry, run), RunLocation{0, at.slot});
    return run_slot < segment.end ? lookup.pages + record.first_page + at.page : nullptr;
  }

  // Where a slot of a segment lies: in which of its pages, from the first on.
  struct PageLocation {
    int32 page;
    int32 slot;
  };
  LAZYROPE_DEVICE static PageLocation locate_in_pages(int32 slot, int32 page_size) {
    // Without a sign, which would take longer, and of one division.
    const auto page =
        static_cast<int32>(static_cast<uint32>(slot) / static_cast<uint32>(page_size));
    return {page, slot - page * page_size};
  }

  SharedPtr memory_;
  BlockChoice choice_;
  const StepView& step_;
  WorkTilePtr item_;
  int32 first_;
};

}  // namespace lazyrope
