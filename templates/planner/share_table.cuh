// The share kernel's table of the caller's segments.
#pragma once

#include "abi/share.h"
#include "isa/math.cuh"
#include "planner/tables.cuh"

namespace lazyrope {

// The keys that segments are sorted by. A key is, from its highest bit: 24 bits of the hash of the
// segment's first page and 8 of the slot in that page, which are the same in a family; 12 bits that
// are the less the more pages the segment has; and its index. A few pages have the same hash, so
// equal first bits alone do not tell that segments are of one family.
struct ShareKey {
  static constexpr uint32 kOthers = 0xffffffff;  // first bits of segments that cannot be shared

  LAZYROPE_DEVICE static uint32 first_bits(int32 page, int32 slot) {
    uint32 hash = static_cast<uint32>(page) * 0x9e3779b1u;
    hash = (hash ^ hash >> 15) * 0x85ebca6bu >> 8;
    hash = smaller(larger(hash, 1u), (kOthers >> 8) - 1);
    return hash << 8 | static_cast<uint32>(smaller(slot, 0xff));
  }
  LAZYROPE_DEVICE static uint32 first_bits(uint64 key) { return static_cast<uint32>(key >> 32); }
  LAZYROPE_DEVICE static int32 segment(uint64 key) {
    return static_cast<int32>(key) & ((1 << kShareIndexBits) - 1);
  }
  LAZYROPE_DEVICE static uint64 make(uint32 first_bits, int32 pages, int32 segment) {
    constexpr int32 kMaxPages = (1 << (32 - kShareIndexBits)) - 1;
    const auto rank = static_cast<uint32>(kMaxPages - smaller(pages, kMaxPages));
    return least(first_bits) | rank << kShareIndexBits | static_cast<uint32>(segment);
  }
  LAZYROPE_DEVICE static uint64 of_others(int32 segment) {
    return least(kOthers) | static_cast<uint32>(segment);
  }
  // Returns the least key that has these first bits.
  LAZYROPE_DEVICE static uint64 least(uint32 first_bits) {
    return static_cast<uint64>(first_bits) << 32;
  }
};

// The columns have an entry for each segment and one more. Their entries are by segment in the
// step's order, by segment in sorted order, or by family. Some share their memory, because the
// second is written when the first is no longer read.
struct ShareTable {
  LAZYROPE_DEVICE ShareTable(GenericPtr at, int64 entries)
      : key(at),
        own_segment(at),
        first_token(at + entries * 8),
        num_tokens(at + entries * 12),
        first_position(at + entries * 16),
        offset(at + entries * 16),
        last_position(at + entries * 20),
        shared_length(at + entries * 20),
        family(at + entries * 24),
        tokens_before(at + entries * 28),
        family_begin(at + entries * 32),
        family_token(at + entries * 36),
        shared_token(at + entries * 40),
        run(at + entries * 44),
        slot(at + entries * 44) {
    static_assert(kShareWordsPerSegment * 4 == 48);
  }

  Column<uint64> key;            // sorted: see ShareKey
  Column<int32> own_segment;     // by segment: segments that requests keep of those before
  Column<int32> first_token;     // by segment: first query token of its request
  Column<int32> num_tokens;      // by segment: query tokens of its request
  Column<int32> first_position;  // by segment: least and greatest position of these ...
  Column<int32> offset;          // ... then the tokens before its first token in the family
  Column<int32> last_position;   // by segment: see first_position ...
  Column<int32> shared_length;   // ... then the tokens that it shares
  Column<int32> family;          // sorted
  Column<int32> tokens_before;   // sorted: query tokens of the segments before
  Column<int32> family_begin;    // by family: its first segment in sorted order
  Column<int32> family_token;    // by family: its first shared token, or kNotShared
  Column<int32> shared_token;    // by segment: the same for its own readers, if it is shared
  // Sorted: the tokens in common with the family's first member. choose_members() replaces the
  // first two of a family: by the tokens that it shares, and by its members that share them.
  Column<int32> run;
  Column<int32> slot;  // by segment: slots of the segments before
};

}  // namespace lazyrope
