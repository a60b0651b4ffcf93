// The block table of a work tile: for each KV block its base, its logical position, its valid
// slots, and the page and first slot of each run.
//
// The table is circular, in shared memory. One warp fills it a window of blocks at a time, well
// before the blocks are read. The lanes of that warp find the segments of a window's blocks by a
// prefix sum, so short segments cost no more than long ones. Page numbers arrive by asynchronous
// copies or by loads whose results are stored later. A work tile contains the page numbers of its
// first runs, so its first blocks need no search.
//
// Reads: the step's segments, the list of pages, and the work tile's WorkTileStart.
// Writes: kCapacity BlockInfo, then kCapacity x kRuns RunLocation, then two SearchPoint, in shared
// memory.
//
// Family sm80: each decode warp fills and reads its own table, or warp 0 fills the table of a
// prefill CTA. Family sm90a: the scheduler warp fills the table (family/sm90a/scheduler_warp.cuh).
// The table contains no barrier: its users synchronize as resolve() requires.
#pragma once

#include "isa/async_copy.cuh"
#include "ops/query_rows.cuh"
#include "ops/segment_blocks.cuh"

namespace lazyrope {

struct BlockInfo {
  int32 base;      // base of the block's segment
  int32 position;  // logical position of the block's slot 0; with cells, the segment's index
  int32 begin;     // valid slots: [begin, end)
  int32 end;       // kMaxSlots + kRunSlots where the segment continues after this block

  // Returns true if the next block belongs to another segment. kMaxSlots is the table's.
  template <int kMaxSlots>
  LAZYROPE_DEVICE bool ends_segment() const {
    return end <= kMaxSlots;
  }
};

struct alignas(8) RunLocation {
  int32 page;
  int32 slot;  // slot in the page
};

// The blocks of a work tile that a table contains. A stripe is `length` consecutive blocks. The
// table contains the stripes first, first + step, first + 2 * step, ... The first `missing` blocks
// of stripe 0 precede the work tile and do not exist; `missing` is less than `length`.
class BlockChoice {
 public:
  LAZYROPE_DEVICE BlockChoice(int32 first, int32 step, int32 length, int32 missing)
      : packed_(first | step << 8 | length << 16 | missing << 24) {}

  // Returns the number of chosen blocks among blocks 0 to num_blocks - 1.
  LAZYROPE_DEVICE int32 count(int32 num_blocks) const {
    const int32 blocks = num_blocks + missing();
    const int32 round = step() * length();
    const int32 rest = blocks % round - first() * length();
    return blocks / round * length() + smaller(larger(rest, 0), length()) - own_missing();
  }

  // Returns the index of the i-th chosen block.
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

  int32 packed_;  // one register, because registers are scarce
};

// Block first + i of the table is the i-th chosen block of the work tile. With kNumbersRuns the
// table also has the number of each block's first run among the runs of the request. The planner
// has then numbered the step's segments and the beginnings of its work tiles (abi/step.h). With
// kHasStates the table has the memory code of each block instead, and twice the runs: a block of
// entries has 2 * kBlockSlots slots (abi/states.h).
template <class Mask, int kBlockSlots, int kWindows = 2, bool kNumbersRuns = false,
          bool kHasStates = false>
class BlockTable {
 public:
  static constexpr int kMaxSlots = kBlockSlots * (kHasStates ? 2 : 1);  // the most slots of a block

 private:
  static constexpr int kRuns = kMaxSlots / kRunSlots;
  static constexpr bool kHasFirstRun = kNumbersRuns || kHasStates;
  static_assert(!(kNumbersRuns && kHasStates));

 public:
  static constexpr int kWindow = kWarpThreads / kRuns;  // blocks that one warp resolves at once
  static constexpr int kCapacity = kWindows * kWindow;  // blocks in the table
  static constexpr int kBytes = block_table_bytes(kMaxSlots, kWindows);
  static_assert(sizeof(BlockInfo) == kBlockInfoBytes && sizeof(RunLocation) == kRunLocationBytes);

  // `first` is the index that the first chosen block has in the table.
  LAZYROPE_DEVICE BlockTable(SharedPtr memory, BlockChoice choice, const StepView& step,
                             WorkTilePtr work_tile, int32 first = 0)
      : memory_(memory), choice_(choice), step_(step), work_tile_(work_tile), first_(first) {}

  LAZYROPE_DEVICE BlockInfo info(int32 block) const {
    BlockInfo info = ld_shared<BlockInfo>(info_address(block));
    if constexpr (kHasFirstRun) info.begin = begin_of(info.begin);
    return info;
  }
  // Returns the memory code of the block's segment.
  LAZYROPE_DEVICE int32 memory_code(int32 block) const {
    if constexpr (kHasStates) return run_of(ld_shared<BlockInfo>(info_address(block)).begin);
    return 0;
  }
  // Returns the number of the block's first run.
  LAZYROPE_DEVICE int32 first_run(int32 block) const {
    static_assert(kNumbersRuns);
    return run_of(ld_shared<BlockInfo>(info_address(block)).begin);
  }
  LAZYROPE_DEVICE RunLocation run(int32 block, int32 run) const {
    return ld_shared<RunLocation>(run_address(block, run));
  }

  // Returns the location of a slot of the block (ops/states.cuh).
  LAZYROPE_DEVICE uint32 location(int32 block, int32 slot, int32 slot_bits) const {
    const RunLocation at = run(block, slot / kRunSlots);
    return (static_cast<uint32>(at.page) << slot_bits) +
           static_cast<uint32>(at.slot + slot % kRunSlots);
  }

  // Returns how many of the first chosen blocks have all their page numbers in the work tile, at
  // most one window.
  LAZYROPE_DEVICE int32 count_prefetched(const WorkTileStart& start) const {
    const int32 num_runs = smaller(ceil_div(start.end, kRunSlots), kStartRuns);
    const int32 runs = block_slots(run_of(start.begin)) / kRunSlots;
    const int32 blocks =
        start.end <= kStartRuns * kRunSlots ? ceil_div(num_runs, runs) : num_runs / runs;
    return smaller(choice_.count(smaller(blocks, work_tile_.extent().num_blocks)), kWindow);
  }

  // One warp writes the first num_prefetched blocks, whose page numbers are in the work tile.
  LAZYROPE_DEVICE void write_prefetched(const WorkTileStart& start, int32 num_prefetched) const {
    const int32 block = lane_index() / kRuns;
    if (block < num_prefetched) {
      const auto slots = block_slots(run_of(start.begin));
      const int32 slot = choice_.block(block) * slots;
      const int32 run = lane_index() % kRuns;
      if (run == 0)
        write_info(first_ + block, start.base, start.position,
                   kHasFirstRun ? begin_of(start.begin) : start.begin, start.end, slot,
                   run_of(start.begin));
      if (!kHasStates || run * kRunSlots < slots)
        st_shared(run_address(first_ + block, run),
                  start_run(work_tile_, start, slot / kRunSlots + run));
    }
  }
  // Returns the location of a run whose page number is in the work tile.
  LAZYROPE_DEVICE static RunLocation start_run(WorkTilePtr work_tile, const WorkTileStart& start,
                                               int32 run) {
    const int32 slot = run * kRunSlots;
    const PageLocation at = locate_in_pages(start.slot + slot, start.page_size);
    return {slot < start.end ? work_tile.start_page(run) : 0, at.slot};
  }

  // The point at which the search for the next window continues: a segment, and the number of the
  // first block in it, counted in the work tile. There are two copies, used alternately, because
  // other lanes may still read the point at which this window's search began.
  struct alignas(8) SearchPoint {
    int32 segment;
    int32 block;
  };
  static_assert(2 * sizeof(SearchPoint) == sizeof(Chunk));  // the last bytes of the table

  // The operands of the search for a window, loaded early: each lane has one of the first 32
  // segments.
  struct Lookup {
    SearchPoint search_point;
    SegmentRecord segment;
    const int32* pages;
    int32 page_size;
  };

  // Returns the operands for the first window that the work tile does not contain. A warp that
  // fills consecutive windows passes the same Lookup on, which find() advances.
  LAZYROPE_DEVICE Lookup look_up_first() const {
    const WorkTileKeys keys = work_tile_.keys();
    return look_up_from({keys.segment, -keys.first_block});
  }
  // Returns the operands for a window whose predecessor was saved by save_search_point().
  LAZYROPE_DEVICE Lookup look_up(int32 window) const {
    return look_up_from(ld_shared<SearchPoint>(search_point_address(window - 1)));
  }
  LAZYROPE_DEVICE void save_search_point(int32 window, const Lookup& lookup) const {
    if (lane_index() == 0) st_shared(search_point_address(window), lookup.search_point);
  }

  // One warp fills window `window`. Windows are filled in order, from 0. The copies of the page
  // numbers belong to the caller's next cp.async group. All users of the table synchronize before
  // they read the window, and before the next window is filled.
  LAZYROPE_DEVICE void resolve(int32 window, Lookup lookup) const {
    const int32* page = find(window, 0, lookup);
    save_search_point(window, lookup);
    if (page != nullptr) cp_async_ca_4(lane_run_address(window), page);
  }

  // Fills the blocks of a window from `first` on, except for their page numbers. Each lane gets the
  // page number of its run, and passes it to store_page() before the block is read.
  LAZYROPE_DEVICE int32 resolve_ahead(int32 window, int32 first, Lookup& lookup) const {
    const int32* page = find(window, first, lookup);
    return page == nullptr ? 0 : ld_global_nc(page);
  }
  LAZYROPE_DEVICE void store_page(int32 window, int32 first, int32 page) const {
    if (entry(window) >= first) st_shared(lane_run_address(window), page);
  }

 private:
  LAZYROPE_DEVICE Lookup look_up_from(const SearchPoint& search_point) const {
    Lookup lookup{};
    lookup.search_point = search_point;
    lookup.segment = load_segment(search_point.segment + lane_index());
    lookup.pages = reinterpret_cast<const int32*>(
        ld_global_nc(reinterpret_cast<const uint64*>(&step_.header->pages)));
    lookup.page_size = ld_global_nc(&step_.header->page_size);
    return lookup;
  }

  LAZYROPE_DEVICE SharedPtr search_point_address(int32 window) const {
    return memory_ + (kBytes - (window % 2 + 1) * static_cast<int32>(sizeof(SearchPoint)));
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

  // Returns the block of which this lane fills one run, or -1 for a lane without a run.
  LAZYROPE_DEVICE static int32 entry(int32 window) {
    if (kWarpThreads % kRuns != 0 && lane_index() >= kWindow * kRuns) return -1;
    return window * kWindow + lane_index() / kRuns;
  }
  LAZYROPE_DEVICE SharedPtr lane_run_address(int32 window) const {
    return run_address(entry(window), lane_index() % kRuns);
  }

  // Returns an empty segment for an index past the work tile's last segment. It loads the last
  // segment again instead of branching: after a branch at the end of a loop, the compiler would not
  // know that the lanes have converged.
  LAZYROPE_DEVICE SegmentRecord load_segment(int32 index) const {
    SegmentRecord record{};
    const int32 end = work_tile_.keys().segment_end;
    const SegmentRecord* p = step_.segments + smaller(index, end - 1);
    const Chunk c = ld_global_nc(reinterpret_cast<const Chunk*>(p));
    record.base = static_cast<int32>(c.word[0]);
    record.origin = static_cast<int32>(c.word[1]);
    record.begin = static_cast<int32>(c.word[2]);
    record.end = static_cast<int32>(index < end ? c.word[3] : c.word[2]);
    record.first_page = ld_global_nc(&p->first_page);
    if constexpr (kHasFirstRun) record.first_run = ld_global_nc(&p->first_run);
    return record;
  }

  // Fills the BlockInfo of a window's blocks from `first` on, and the slots of their runs. Returns
  // the address of the page number of this lane's run, or null if no slot of the run is read.
  // `lookup` is advanced to the next window.
  LAZYROPE_DEVICE const int32* find(int32 window, int32 first, Lookup& lookup) const {
    const WorkTileExtent extent = work_tile_.extent();
    const int32 segment_end = work_tile_.keys().segment_end;
    SearchPoint search_point = lookup.search_point;
    SegmentRecord record = lookup.segment;
    const int32 block = choice_.block(entry(window) - first_);
    const bool wanted = entry(window) >= first && block < extent.num_blocks;
    const int32* page = nullptr;
#pragma unroll 1
    while (true) {
      const VisibleSegment segment =
          visible_segment<Mask, kHasStates>(record, {extent.first_position, extent.last_position});
      const int32 blocks = segment.template blocks<kHasStates>(kBlockSlots);
      const int32 blocks_through = prefix_sum(blocks);
      const int32 total = shfl_sync_idx(blocks_through, kWarpThreads - 1);
      const int32 target = block - search_point.block;
      const int32 owner = upper_bound_lane(blocks_through, target);
      const int32 owner_first = shfl_sync_idx(blocks_through - blocks, owner);
      const VisibleSegment found = from_lane<kHasFirstRun>(segment, owner);
      // A block with a negative target was found among the 32 segments before.
      if (wanted && target >= 0 && target < total)
        page = write(entry(window), found, target - owner_first, lookup);
      if (!vote_sync_any(wanted && target >= total)) break;
      search_point.segment += kWarpThreads;
      search_point.block += total;
      if (warp_uniform(search_point.segment >= segment_end)) break;
      record = load_segment(search_point.segment + lane_index());
    }
    lookup.search_point = search_point;
    lookup.segment = record;
    return page;
  }

  // Writes the BlockInfo of a block that begins at `slot`, counted like position, begin and end.
  // Slot 0 is in run `run` of the request; with kHasStates, `run` is the segment's memory code.
  LAZYROPE_DEVICE void write_info(int32 entry, int32 base, int32 position, int32 begin, int32 end,
                                  int32 slot, int32 run) const {
    const int32 rest = end - slot;
    const int32 own_begin = larger(begin - slot, 0);
    const auto slots = block_slots(run);
    st_shared(info_address(entry),
              BlockInfo{base, position + slot,
                        kHasStates     ? numbered_begin(own_begin, run)
                        : kNumbersRuns ? numbered_begin(own_begin, run + slot / kRunSlots)
                                       : own_begin,
                        rest <= slots ? rest : kMaxSlots + kRunSlots});
  }

  // Returns the slots of a block of a segment.
  LAZYROPE_DEVICE static auto block_slots(int32 code) {
    return slots_of_blocks<kBlockSlots, kHasStates>(code);
  }

  LAZYROPE_DEVICE const int32* write(int32 entry, const VisibleSegment& segment,
                                     int32 block_in_segment, const Lookup& lookup) const {
    const SegmentRecord& record = segment.record;
    const int32 run = lane_index() % kRuns;
    const auto slots = block_slots(record.first_run);
    const int32 slot = segment.first_slot() + block_in_segment * slots;
    if (run == 0)
      write_info(entry, record.base, record.origin, record.begin, segment.end, slot,
                 record.first_run);
    const int32 run_slot = slot + run * kRunSlots;
    const PageLocation at = locate_in_pages(run_slot, lookup.page_size);
    st_shared(run_address(entry, run), RunLocation{0, at.slot});
    if (kHasStates && run * kRunSlots >= slots) return nullptr;
    return run_slot < segment.end ? lookup.pages + record.first_page + at.page : nullptr;
  }

  // The location of a segment's slot: an index into the segment's pages, and a slot in that page.
  struct PageLocation {
    int32 page;
    int32 slot;
  };
  LAZYROPE_DEVICE static PageLocation locate_in_pages(int32 slot, int32 page_size) {
    // Unsigned division is faster, and one division serves both results.
    const auto page =
        static_cast<int32>(static_cast<uint32>(slot) / static_cast<uint32>(page_size));
    return {page, slot - page * page_size};
  }

  SharedPtr memory_;
  BlockChoice choice_;
  const StepView& step_;
  WorkTilePtr work_tile_;
  int32 first_;
};

}  // namespace lazyrope
