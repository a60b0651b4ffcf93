// Attention states in device memory (arXiv 2605.18226). A memory is a list of entries in the pool's
// pages. The key slot of an entry has its key: the mean of the queries that it stands for, each
// rotated by its position where token 0 of the document is at position 0. The value slot has the
// state: the attention output of these queries over a prefix. A tensor beside the pool has the
// log-sum-exp (LSE) of their scores.
//
// A query looks up the entry whose key has the greatest score, and counts it as one more key, whose
// logit is the entry's LSE. A segment with a kind other than 0 has entries. Its base rotates
// queries as the base of a document does. All rows of its request see all of its entries.
//
// A KV block of entries has twice the keys of another block, because its values are not read: the
// second half of the keys takes the place of the values.
#pragma once

#include "abi/types.h"

namespace lazyrope {

// The most memories that a request can have.
inline constexpr int32 kMaxMemories = 4;

// A segment's kind: 0, or the number of the request's memory from 1 to kMaxMemories, to which
// kKeyPerHead is added if entry i serves query head i % group_size of each KV head alone.
// Segments of one request that have the same number are one memory.
inline constexpr int32 kKeyPerHead = 8;
constexpr bool is_memory(int32 kind) { return kind != 0; }
constexpr bool has_key_per_head(int32 kind) { return (kind & kKeyPerHead) != 0; }
constexpr int32 memory_index(int32 kind) { return (kind & (kKeyPerHead - 1)) - 1; }
constexpr bool is_legal_kind(int32 kind) {
  return kind == 0 || (kind > 0 && kind < 2 * kKeyPerHead && memory_index(kind) >= 0 &&
                       memory_index(kind) < kMaxMemories);
}

// The entry of a memory that has a row's greatest score so far.
struct alignas(8) BestEntry {
  float score;
  int32 location;  // page * page_size + slot in the page, or kNoEntry
};
inline constexpr int32 kNoEntry = 0x7fffffff - 1;
inline constexpr int32 kRowEntryBytes = kMaxMemories * static_cast<int32>(sizeof(BestEntry));

// The LSEs of entries: natural logarithms, fp32 [pages, kv_heads, page_size], contiguous.
struct EntryLse {
  const float* data;
  int32 num_kv_heads;
  int32 page_size;
};
static_assert(sizeof(EntryLse) == 16);

}  // namespace lazyrope
