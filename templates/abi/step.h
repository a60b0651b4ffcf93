// The plan of a step in device memory: the planner writes it and attend reads it. Host and device
// share these structs, so they are plain aggregates of fixed size. All integers of a work tile
// count tokens, slots, rows or blocks; none is in bytes.
#pragma once

#include "abi/types.h"

namespace lazyrope {

inline constexpr int kRunSlots = 16;  // consecutive slots that are always in one page

// A block begins with the run of its first valid slot. So its first valid slot is below kRunSlots,
// and one integer has room for this slot and for the number of the block's first run.
constexpr int32 numbered_begin(int32 begin, int32 run) { return run * kRunSlots + begin; }
constexpr int32 begin_of(int32 numbered) { return numbered & (kRunSlots - 1); }
constexpr int32 run_of(int32 numbered) { return numbered >> 4; }
static_assert(kRunSlots == 1 << 4);

// A segment. Slot s of its page list holds the token at logical position origin + s, for begin <= s
// < end. Slot 0 is the first slot of page pages[first_page].
struct SegmentRecord {
  int32 base;        // logical position of the document's token 0, the origin of the rotation
  int32 origin;      // base + start - lead, or with a mask_base, mask_base + start - lead
  int32 begin;       // lead
  int32 end;         // lead + length
  int32 first_page;  // index into the page-list array
  // The number that the run of slot 0 has among the runs of the request. Only kernels that measure
  // page mass have it (abi/page_mass.h); it is below 0 if the first token's run is a later one.
  // Kernels of attention states have the segment's memory code here (abi/states.h).
  int32 first_run;
  int32 unused[2];
};
static_assert(sizeof(SegmentRecord) == 32);

// A work tile is a tile of query rows of some KV heads, and a range of the KV blocks that they see.
// Packed row r of a request is query token r / group_size, head r % group_size of a KV head's
// group. Each struct has 16 bytes, so that a kernel loads at once what it needs.
struct WorkTileExtent {
  int32 num_blocks;      // 0: the rows see no key
  int32 num_rows;        // rows of the tile for one KV head; 0: there is no work tile
  int32 first_position;  // least and greatest logical position of the tile's rows
  int32 last_position;
};

struct WorkTileRows {
  int32 query_token;  // row of q with the request's first token
  int32 first_row;    // first packed row of the tile, counted in the request
  int32 kv_head;      // first KV head
  int32 num_heads;    // number of KV heads
};

struct WorkTileKeys {
  int32 segment;      // segment of the work tile's first block
  int32 segment_end;  // one past the request's last segment
  int32 first_block;  // number of the first block among the segment's visible blocks
  // The CTA's next work tile, or kNoWorkTile. A lower value means that the CTA takes work tiles
  // from a queue of -next work tiles.
  int32 next;
};
inline constexpr int32 kNoWorkTile = -1;

// The KV split that a work tile is, and where its partial result goes.
struct KvSplit {
  int32 index;  // this work tile is split `index` of `count` of its tile; count 1: not split
  int32 count;
  int32 partial;  // index of split 0's partial result; the other splits follow
  int32 counter;  // index of the counter that counts the tile's splits
};

// The pages of the work tile's first blocks, so that the loads of these blocks can be issued at
// once. The pages are those of kStartRuns runs of the first block's segment. Slot 0 is the first
// slot of that block.
inline constexpr int32 kStartRuns = 41;
struct WorkTileStart {
  int32 base;      // base of the segment
  int32 position;  // logical position of slot 0; with cells (abi/states.h), the segment's index
  // Valid slots of the segment, from slot 0 on: begin <= slot < end. In kernels that measure page
  // mass, `begin` also has the number of slot 0's run (numbered_begin()), and in those of attention
  // states the segment's memory code.
  int32 begin;
  int32 end;
  int32 slot;  // index of slot 0 in its page
  int32 page_size;
  int32 page[kStartRuns];  // page of each run
};

// The planner writes it (planner/work_tiles.cuh); a CTA of an attend kernel reads it.
struct WorkTile {
  WorkTileExtent extent;
  WorkTileRows rows;
  WorkTileKeys keys;
  KvSplit split;
  WorkTileStart start;
  int32 num_combiners;  // the CTAs of the tile's first num_combiners splits combine its rows
};
static_assert(sizeof(WorkTile) == 256);

// The fields that `update` changes while a captured graph keeps its launch parameters. The planner
// writes them.
struct StepHeader {
  const int32* pages;
  int32 page_size;
  int32 unused;
};
static_assert(sizeof(StepHeader) == 16);

// Device memory of a step that all attend kernels read. The planner writes it.
struct StepView {
  StepHeader* header;
  SegmentRecord* segments;  // [capacity.segments]
  int32* positions;         // [capacity.query_tokens]
};
static_assert(sizeof(StepView) == 24);

// Returns the bytes of a row's partial result in shared memory: head_dim floats, then maximum and
// sum. The padding puts the rows of a fragment in different banks.
constexpr int32 partial_record_bytes(int32 head_dim) { return (head_dim + 8) * 4; }

// Partial results in global memory have other statistics: each slice of kSliceColumns or more
// columns has its own maximum and sum.
inline constexpr int32 kSliceColumns = 8;
constexpr int32 num_slices(int32 head_dim) {
  return (head_dim + kSliceColumns - 1) / kSliceColumns;
}
constexpr int32 partial_row_bytes(int32 head_dim) {
  return head_dim * 4 + (num_slices(head_dim) * 8 + 15) / 16 * 16;
}

// In kernels of attention states a slice also has the row's best entry of each memory
// (abi/states.h).
constexpr int32 partial_row_bytes(int32 head_dim, int32 row_entry_bytes) {
  return partial_row_bytes(head_dim) + num_slices(head_dim) * row_entry_bytes;
}

// Device memory of one attend kernel's work. The planner writes work_tiles and sets the counters to
// 0; attend uses the rest.
struct WorkView {
  WorkTile* work_tiles;  // [max_work_tiles]: the first of each CTA, then the others
  // [partials][partial_row_count] rows, all words 0 between launches (ops/partial_rows.cuh)
  uint8* partials;
  // num_ctas counters of tiles, then one mark per partial result (ops/combine_scheduler.cuh). With
  // fixed splits the tiles' counters follow the marks. With a queue, the first counter counts the
  // work tiles taken.
  uint32* counters;
  uint8* saved_queries;  // [num_ctas] saved queries, where consumers rotate in place; else empty
  int32 num_ctas;
  int32 partial_row_count;  // rows that one partial result has room for
  int32 unused[2];
};
static_assert(sizeof(WorkView) == 48);

}  // namespace lazyrope
