// The planner's policy: the costs of work, and the limits that decide which schedule is chosen and
// how many KV splits a unit gets. The planner's kernel and the host code that fills in PlanPhase
// (runtime/step) share this file.
//
// All costs are in eighths of a KV block.
#pragma once

#include "abi/types.h"

namespace lazyrope {

inline constexpr int32 kBlockCost = 8;  // a KV block, for one group of KV heads
// A segment that a tile sees, because its queries are rotated for the segment.
inline constexpr int32 kSegmentCost = kBlockCost / 4;
// Greatest cost of a step. An int32 holds it, and the values that it is compared with.
inline constexpr int32 kMaxStepCost = 1 << 30;
// Greatest cost of a tile, which only millions of tokens reach. The costs of 512 tiles, one a
// thread, then fit an int32 together.
inline constexpr int32 kMaxTileCost = (1 << 22) - 1;

// The cost of a work tile beside its blocks. A CTA reads nothing while it changes from one work
// tile to the next. In decode the cost is that of the bytes that the CTA could have read meanwhile.
// They were measured on an H200 and are about the same for all head dims. `block_bytes` is the size
// of a block's keys and values, for all heads of a work tile.
constexpr int32 decode_work_tile_cost(int32 block_bytes) {
  constexpr int32 kBytes = 160 * 1024;
  const int32 cost = kBlockCost * kBytes / block_bytes;
  return cost > kBlockCost ? cost : kBlockCost;
}
inline constexpr int32 kPrefillWorkTileCost = kBlockCost;

// Stream-K. Shares up to these costs are short: a few megabytes of KV. Short shares become whole
// units, or equal splits of one unit, which takes less time on an H200 than shares of equal cost.
constexpr int32 short_share_cost(int32 work_tile_cost) { return 20 * work_tile_cost; }
constexpr int32 short_split_cost(int32 short_share) { return short_share * 2 / 5; }
// Returns the least cost of a share. It exceeds the cost of min_split_blocks blocks even if each
// has a segment of its own.
constexpr int32 min_share_cost(int32 min_split_blocks) {
  return min_split_blocks * (kBlockCost + kSegmentCost) + 1;
}
// A number of shares is near the greatest possible one if it is less by at most 1 /
// kShareTolerance. Tiles cost about the same if their total differs from that of as many copies of
// the first by at most this part.
inline constexpr int32 kShareTolerance = 16;
// Greatest number of splits of a step's only tile, and with equal splits of each unit that has more
// blocks. To combine more would take longer.
inline constexpr int32 kMaxSingleTileSplits = 32;

// Round-robin. The costliest CTA may exceed the average by one part in 2^bits. In tile-major order
// neighbouring CTAs share no keys, so their imbalance must be smaller than in group-major order.
inline constexpr int32 kBalancedBits = 6;
inline constexpr int32 kNearlyBalancedBits = 3;
inline constexpr int32 kTileMajorBits = 5;
inline constexpr int32 kMaxRoundRobinRounds = 64;
// Greatest number of splits of each unit of an incomplete last round, after rounds of whole units.
inline constexpr int32 kMaxRemainderSplits = 16;
// To split the units of the last round must save more than this cost. Measured on an H100.
inline constexpr int32 kCombineCost = 8 * kBlockCost;

// The queue (QueueSchedule::pays_off() and sort()).
inline constexpr int32 kMinQueueUnits = 8;    // costliest units that the average CTA's cost holds
inline constexpr int32 kMinQueueBlocks = 12;  // average blocks of a unit; measured on an H100
// The costliest unit must cost at least 5/4 of the average: kMinQueueSpread / kQueueSpreadDivisor.
inline constexpr int32 kMinQueueSpread = 5;
inline constexpr int32 kQueueSpreadDivisor = 4;
inline constexpr int32 kTailGroups = 4;  // last groups of KV heads, ordered together by cost
inline constexpr int32 kMaxSortedTiles = 1024;

// The cascade (planner/share.cuh): the fewest tokens of a shared segment, and the most query tokens
// of a shared step, which bound the memory of its results.
inline constexpr int32 kMinSharedLength = 64;
inline constexpr int32 kMaxSharedTokens = 6144;

// A work tile gets more KV heads only if the remaining units, cut into this many KV splits each,
// are enough for all CTAs. So few splits are cheap to combine.
inline constexpr int32 kMaxSplitsPerUnit = 4;

// Greatest value of PlanPhase::min_split_blocks: no tile counts as more blocks.
inline constexpr int32 kMaxSplitBlocks = 1 << 19;
// Greatest number of fixed splits of a tile.
inline constexpr int32 kMaxFixedSplits = 16;
// Greatest number of fixed splits of a request, over all tiles and KV heads, where round-robin is
// allowed. It is about the number of SMs of a GPU. A request with more tiles has one split per
// tile.
inline constexpr int32 kMaxRequestSplits = 128;
// Packed keys save time (kernel/plan_packing.cu.in). Its unit is a token that rotate_keys copies:
// the time of a KV block of a query tile, and of a segment, for which the tile's queries are
// rotated. They follow from the times of prefill with 32 and 8 heads of 128 columns, and from
// the bytes that copying reads and writes. Both grow alike with the columns and the KV heads.
inline constexpr int32 kPackedBlockTokens = 38;
inline constexpr int32 kPackedSegmentTokens = 8;
// From a pool of 8 bits, packed keys also save the time in which attention would widen a KV block
// for each query tile.
inline constexpr int32 kPackedWidenedBlockTokens = 13;

}  // namespace lazyrope
