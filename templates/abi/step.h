// What a step keeps on the device: the planner writes it, attend reads it. Shared by host and
// device text, so plain aggregates of fixed size only.
#pragma once

#include "abi/types.h"

namespace lazyrope {

// A segment as the kernels use it. Slot s of its page list (s = 0 is the first slot of page
// pages[first_page]) holds the token at logical position origin + s, for begin <= s < end.
struct SegmentRecord {
  int32 base;        // logical position of token 0 of the document: the angle of the rotation
  int32 origin;      // base + start - lead
  int32 begin;       // lead
  int32 end;         // lead + length
  int32 first_page;  // index into the page-list array
  int32 unused[3];
};
static_assert(sizeof(SegmentRecord) == 32);

// A tile of query rows of some KV heads and a range of the KV blocks that they look at. Packed row
// r of a request is query token r / group_size, head r % group_size of a KV head's group. In parts
// of 16 bytes, so that a kernel loads the part it needs at once.
struct WorkTileExtent {
  int32 num_blocks;      // 0: the rows see no key
  int32 num_rows;        // rows of the tile, of one KV head; 0: there is no work tile
  int32 first_position;  // least and greatest logical position of the tile's rows
  int32 last_position;
};

struct WorkTileRows {
  int32 query_token;  // row of q with the request's first token
  int32 first_row;    // first packed row of the tile
  int32 kv_head;      // the first
  int32 num_heads;    // KV heads
};

struct WorkTileKeys {
  int32 segment;      // in which the work tile's first block lies
  int32 segment_end;  // one past the request's last
  int32 first_block;  // which of the segment's blocks that the rows see that is
  int32 next;  // the CTA's next work tile; kNoWorkTile; or less: it takes one of a queue of -next
               // work tiles
};
inline constexpr int32 kNoWorkTile = -1;

struct KvSplit {
  int32 index;  // this work tile is part `index` of `count` of its tile
  int32 count;
  int32 partial;  // where part 0 leaves its result; the others follow
  int32 counter;  // which of the work's counters counts the parts
};

// Where the work tile's first blocks lie, so that they can be asked for at once: the runs of the
// segment in which the first block lies, from the first slot of that block on.
inline constexpr int32 kStartRuns = 41;
struct WorkTileStart {
  int32 base;      // of the segment
  int32 position;  // logical position of slot 0 (of the first block)
  int32 begin;     // valid slots: of the segment, not only of the first block
  int32 end;
  int32 slot;  // of slot 0 in its page
  int32 page_size;
  int32 page[kStartRuns];  // of each run
};

struct WorkTile {
  WorkTileExtent extent;
  WorkTileRows rows;
  WorkTileKeys keys;
  KvSplit split;
  WorkTileStart start;
  int32 num_combiners;  // of the tile's parts, the first so many: their CTAs merge its rows
};
static_assert(sizeof(WorkTile) == 256);

// What `update` changes while a captured graph keeps its launch parameters.
struct StepHeader {
  const int32* pages;
  int32 page_size;
  int32 unused;
};
static_assert(sizeof(StepHeader) == 16);

// Device addresses of what all kernels of a step read.
struct StepView {
  StepHeader* header;
  SegmentRecord* segments;  // [capacity.segments]
  int32* positions;         // [capacity.query_tokens]
};
static_assert(sizeof(StepView) == 24);

// A part of a row in shared memory: head_dim floats, then maximum and sum, padded so that the rows
// of a fragment fall into different banks.
constexpr int32 partial_record_bytes(int32 head_dim) { return (head_dim + 8) * 4; }

// The same in global memory, where each slice of so many columns, or more, has its own maximum and
// sum.
inline constexpr int32 kSliceColumns = 8;
constexpr int32 num_slices(int32 head_dim) {
  return (head_dim + kSliceColumns - 1) / kSliceColumns;
}
constexpr int32 partial_row_bytes(int32 head_dim) {
  return head_dim * 4 + (num_slices(head_dim) * 8 + 15) / 16 * 16;
}

// Device addresses of the work of one attend kernel.
struct WorkView {
  WorkTile* work_tiles;  // [max_work_tiles]: the first of each CTA, then the others
  uint8* partials;  // [parts][partial_row_count] rows: templates/ops/partial_rows.cuh; 0 between
                    // launches
  uint32*
      counters;  // templates/ops/combine_scheduler.cuh; of a queue, the first counts what is taken
  uint8* saved_queries;  // [num_ctas] tiles of queries, where consumers turn them; else none
  int32 num_ctas;
  int32 partial_row_count;  // rows that a partial result has room for
  int32 unused[2];
};
static_assert(sizeof(WorkView) == 48);

}  // namespace lazyrope
