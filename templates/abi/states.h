// Attention states in device memory (arXiv 2605.18226). A memory is a list of entries in the pool's
// pages. The key slot of an entry has its key: the mean of the queries that it stands for, each
// rotated by its position where token 0 of the document is at position 0. The value slot has the
// state: the attention output of these queries over a prefix. A tensor beside the pool has the
// log-sum-exp (LSE) of their scores.
//
// A query looks up the entry whose key has the greatest score, and counts it as one more key, whose
// logit is the entry's LSE. A segment with a memory code other than 0 has entries. Its base rotates
// queries as the base of a document does. All rows of its request see all of its entries.
//
// The entries of a segment may be in cells, for a look-up of two levels: first all cells of equal
// size, then one key for each cell, its centre. A query then finds the centre with the greatest
// score, and looks up the best entry of that cell alone (ops/cells.cuh). For the planner and for
// copies, such a segment is one block with the first run of its slots.
//
// A KV block of entries has twice the keys of another block, because its values are not read: the
// second half of the keys takes the place of the values.
#pragma once

#include "abi/types.h"

namespace lazyrope {

// The most memories that a request can have.
inline constexpr int32 kMaxMemories = 4;

// A segment's memory code: 0, or the sum of
//   the number of the request's memory, from 1 to kMaxMemories;
//   kKeyPerHead if key i of the list serves query head i % group_size of each KV head alone. With
//     cells these are the centres, and each cell has entries of one head;
//   kCellEntry times the number of entries of a cell, if the entries are in cells.
// Segments of one request that have the same number are one memory.
inline constexpr int32 kKeyPerHead = 8;
inline constexpr int32 kCellEntry = 16;
inline constexpr int32 kMaxCellEntries = 65535;
constexpr bool is_memory(int32 code) { return code != 0; }
constexpr bool has_key_per_head(int32 code) { return (code & kKeyPerHead) != 0; }
constexpr int32 memory_index(int32 code) { return (code & (kKeyPerHead - 1)) - 1; }
constexpr int32 cell_entries(int32 code) { return code / kCellEntry; }
constexpr bool has_cells(int32 code) { return code >= kCellEntry; }
constexpr bool is_legal_code(int32 code) {
  return code == 0 || (code > 0 && cell_entries(code) <= kMaxCellEntries &&
                       memory_index(code) >= 0 && memory_index(code) < kMaxMemories);
}
// Returns true if a segment of so many slots consists of whole cells and their centres.
constexpr bool has_whole_cells(int32 code, int32 length) {
  return !has_cells(code) || length % (cell_entries(code) + 1) == 0;
}

// The entry of a memory that has a row's greatest score so far. Best entries are compared as
// numbers of 64 bits, of which `order` is the upper half: the greater one is better. Neither word
// is ever 0 (ops/partial_rows.cuh).
struct alignas(8) BestEntry {
  uint32 inverse;  // ~location (ops/states.cuh)
  uint32 order;    // grows with the score; no_order() if there is no entry
};
constexpr uint32 no_order() { return 0x007fffff; }  // that of a score of -infinity
inline constexpr int32 kRowEntryBytes = kMaxMemories * static_cast<int32>(sizeof(BestEntry));

// The LSEs of entries: natural logarithms, fp32 [pages, kv_heads, page_size], contiguous. There are
// fewer than kMaxLses.
inline constexpr int32 kMaxLses = 0x7fffffff - 1;
struct EntryLse {
  const float* data;
  int32 num_kv_heads;
  int32 page_size;
};
static_assert(sizeof(EntryLse) == 16);

}  // namespace lazyrope
