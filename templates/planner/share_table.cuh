// The share kernel's table of the caller's segments.
#pragma once

#include "abi/share.h"
#include "planner/tables.cuh"

namespace lazyrope {

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
  Column<int32> first_position;  // by segment: least position of these tokens
  Column<int32> last_position;   // by segment: greatest position of these tokens
  Column<int32> offset;          // by segment: tokens before its first token in its family
  Column<int32> shared_length;   // by segment: tokens that it shares
  Column<int32> family;          // sorted
  Column<int32> tokens_before;   // sorted: query tokens of the segments before
  Column<int32> family_begin;    // by family: its first segment in sorted order
  Column<int32> family_token;    // by family: its first shared token, or kNotShared
  Column<int32> shared_token;    // by segment: the same for its own readers, if it is shared
  // Sorted: the tokens in common with the member before. choose_members() replaces those of a
  // family's first two members: by the tokens that it shares, and by the number of its members that
  // share them.
  Column<int32> run;
  Column<int32> slot;  // by segment: slots of the segments before
};

}  // namespace lazyrope
