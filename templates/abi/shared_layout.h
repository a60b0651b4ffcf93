// The shared memory of each attend kernel: byte offsets from its start, for host and device. The
// host needs the sum for a launch, and the device needs the offsets.
#pragma once

#include "abi/attend_tma.h"
#include "abi/states.h"
#include "abi/step.h"

namespace lazyrope {

constexpr int kChunkBytes = 16;
constexpr int kQueryElementBytes = 2;
constexpr int kSharedFlagBytes = 16;    // flags of the CTA that all its threads read
constexpr int kStageBarrierBytes = 16;  // a full and an empty mbarrier for each stage
constexpr int kBlockInfoBytes = 16;
constexpr int kRunLocationBytes = 8;
constexpr int kBiasBytes = 4;    // bytes of the bias of a key
constexpr int kWindowRuns = 32;  // runs of a window of the block table: one for each lane

// Products that add the bias (ops/key_bias.cuh) read a chunk for each key, and a core matrix of
// ones for all queries. These are functions, because a constant would take constant memory of all
// kernels.
constexpr int bias_column_bytes() { return kChunkBytes; }
constexpr int bias_ones_bytes() { return 8 * kChunkBytes; }
// Products that add up the weights of each run of a block (ops/page_mass.cuh) read eight of these
// chunks for a run, each time one chunk further on.
constexpr int run_selector_bytes(int runs) { return (runs + 7) * kChunkBytes; }

constexpr int max_of(int a, int b) { return a > b ? a : b; }

// Returns the 16-byte chunks of a row of tile/shared_tile.cuh, whose columns are padded to a
// multiple of 16.
constexpr int shared_row_chunks(int columns, int element_bytes) {
  return (columns + 15) / 16 * element_bytes;
}
// Returns the distance of two rows. Rows that are not swizzled are an odd number of chunks apart,
// so that eight of them fall into different banks.
constexpr int shared_row_bytes(int columns, int element_bytes) {
  const int chunks = shared_row_chunks(columns, element_bytes);
  return (chunks % 8 == 0 || chunks % 2 == 1 ? chunks : chunks + 1) * kChunkBytes;
}

// Returns the bytes of pipeline/block_table.cuh: an entry for each block of its windows, and the
// points at which searches continue.
constexpr int block_table_bytes(int block_n, int windows) {
  const int runs = block_n / kRunSlots;
  const int blocks = windows * (kWindowRuns / runs);
  return blocks * (kBlockInfoBytes + runs * kRunLocationBytes) + kChunkBytes;
}

// Kernels of attention states have a table with twice the runs a block, and the best entries of
// each row (abi/states.h).
constexpr int table_slots(int block_n, bool states) { return states ? 2 * block_n : block_n; }
constexpr int entry_bytes(int rows, bool states) { return states ? rows * kRowEntryBytes : 0; }

// family/sm80/prefill_kernel.cuh. All warps share one ring.
struct Sm80PrefillLayout {
  int queries;  // the rotated queries of each warp; the ring of keys and values is before them
  int wide;     // a block of keys and one of values, where 8-bit elements are widened
  int table;
  int table_bytes;
  int positions;
  int work_tile;
  int flags;
  int entries;  // the best entries of all rows, in kernels of attention states
  int bytes;
};

struct Sm80PrefillShape {
  int head_dim;
  int warps_m;
  int warp_m;
  int block_n;
  int stages;
  int kv_bytes;  // bytes of an element of the pool
  bool states;   // the kernel attends to attention states
};

constexpr Sm80PrefillLayout layout_of(const Sm80PrefillShape& shape) {
  const int rows = shape.warps_m * shape.warp_m;
  const int row_bytes = shared_row_bytes(shape.head_dim, kQueryElementBytes);
  const int tile_bytes = shape.block_n * shared_row_bytes(shape.head_dim, shape.kv_bytes);
  const int wide_bytes = shape.kv_bytes == 1 ? 2 * shape.block_n * row_bytes : 0;
  // Results are staged where the ring and the queries were.
  const int staged_bytes = shape.warps_m * 16 * partial_record_bytes(shape.head_dim);
  Sm80PrefillLayout layout = {};
  layout.queries = 2 * shape.stages * tile_bytes;
  layout.wide = layout.queries + rows * row_bytes;
  layout.table = max_of(layout.wide + wide_bytes, staged_bytes);
  layout.table_bytes = block_table_bytes(table_slots(shape.block_n, shape.states), 2);
  layout.positions = layout.table + layout.table_bytes;
  layout.work_tile = layout.positions + rows * 4;
  layout.flags = layout.work_tile + static_cast<int>(sizeof(WorkTile));
  layout.entries = layout.flags + kSharedFlagBytes;
  layout.bytes = layout.entries + entry_bytes(rows, shape.states);
  return layout;
}

// family/sm80/decode_kernel.cuh. Each warp has a ring of its own.
struct Sm80DecodeLayout {
  int ring_bytes;  // bytes of each warp's ring; the rings come first
  int queries;     // the rotated queries of each warp
  int original;    // the queries as they were loaded
  int tables;      // the block table of each warp
  int table_bytes;
  int positions;
  int work_tiles;  // the work tile and the next
  int flags;
  int key_biases;  // the ring of biases of each warp, if the spec has a key bias
  int key_bias_bytes;
  int entries;  // the best entries of the rows of each warp, in kernels of attention states
  int bytes;
};

struct Sm80DecodeShape {
  int head_dim;
  int warps_n;
  int block_m;
  int warp_n;
  int stages;
  int kv_bytes;
  bool key_bias = false;
  bool states = false;
};

// Returns the number of tiles of a warp's ring that its staged results take.
constexpr int staged_tiles(int head_dim, int tile_bytes) {
  return (16 * partial_record_bytes(head_dim) + tile_bytes - 1) / tile_bytes;
}

constexpr Sm80DecodeLayout layout_of(const Sm80DecodeShape& shape) {
  const int query_bytes = shape.block_m * shared_row_bytes(shape.head_dim, kQueryElementBytes);
  const int tile_bytes = shape.warp_n * shared_row_bytes(shape.head_dim, shape.kv_bytes);
  Sm80DecodeLayout layout = {};
  layout.ring_bytes = max_of(shape.stages, staged_tiles(shape.head_dim, tile_bytes)) * tile_bytes;
  layout.queries = shape.warps_n * layout.ring_bytes;
  layout.original = layout.queries + shape.warps_n * query_bytes;
  layout.tables = layout.original + query_bytes;
  layout.table_bytes = block_table_bytes(table_slots(shape.warp_n, shape.states), 2);
  layout.positions = layout.tables + shape.warps_n * layout.table_bytes;
  layout.work_tiles = layout.positions + shape.block_m * 4;
  layout.flags = layout.work_tiles + 2 * static_cast<int>(sizeof(WorkTile));
  layout.key_biases = layout.flags + kSharedFlagBytes;
  layout.key_bias_bytes = shape.key_bias ? (shape.stages + 1) / 2 * shape.warp_n * kBiasBytes : 0;
  layout.entries = layout.key_biases + shape.warps_n * layout.key_bias_bytes;
  layout.bytes = layout.entries + entry_bytes(shape.warps_n * shape.block_m, shape.states);
  return layout;
}

// The scratch memory of one warpgroup of family/sm90a/column_consumer.cuh.
struct ColumnScratchLayout {
  // Four values for each row, one of each warp. The block's weights are before. In blocks of
  // entries (abi/states.h) the two arrays have the best entries of each warp's rows instead.
  int warp_maxima;
  int warp_sums;
  int row_maxima;
  int flags;
  int bytes;
};

constexpr ColumnScratchLayout column_scratch_layout(int rows, int weight_bytes) {
  ColumnScratchLayout layout = {};
  layout.warp_maxima = weight_bytes;
  layout.warp_sums = layout.warp_maxima + 4 * rows * 4;
  layout.row_maxima = layout.warp_sums + 4 * rows * 4;
  layout.flags = layout.row_maxima + rows * 4;
  layout.bytes = layout.flags + kSharedFlagBytes;
  return layout;
}

// family/sm90a/tile_memory.cuh, for prefill and decode. The ring of keys comes first.
struct Sm90aLayout {
  int key_block_bytes;
  int value_block_bytes;
  int value_ring;
  int rotated_queries;
  int original;   // the queries as they were loaded, unless consumers rotate them in place
  int ones;       // a panel of ones, if products also sum the weights
  int rotations;  // stages of shared rotations, if producer warps compute them
  int table;
  int table_bytes;
  int positions;  // row positions of each work tile
  int work_tiles;
  int key_barriers;
  int value_barriers;
  int stored_barriers;  // full when 8-bit elements have been copied
  int rotated_barriers;
  int rotation_barriers;
  int saved_barriers;
  int work_tile_barriers;
  int window_barriers;
  int query_order;
  int flags;
  int first_blocks;  // the number of each work tile's first block
  int key_biases;    // the biases of each stage's keys, in decode or if products add them
  int bias_ones;     // the queries' side of products that add biases
  int run_selector;  // the runs' side of products that add up the weights of each run
  int consumer_scratch;
  int entries;       // the best entries of each row, in kernels of attention states
  int query_scales;  // the scales of each work tile's 8-bit queries
  int totals;        // sums of value products of 8 bits
  int bytes;
};

struct Sm90aShape {
  int head_dim;
  int block_m;
  int block_n;
  int stages;
  int heads;       // KV heads side by side in a tile
  int warpgroups;  // warpgroups of consumers
  bool is_prefill;
  bool widens;  // the pool has 8-bit elements
  bool key_bias = false;
  bool multiplies_bias = false;  // products add the biases: see with_fitting_biases()
  bool states = false;           // the kernel attends to attention states
  bool page_mass = false;        // the kernel measures page masses
  bool float8 = false;           // products are of 8-bit queries, keys, weights and values
};

constexpr Sm90aLayout layout_of(const Sm90aShape& shape) {
  const bool is_prefill = shape.is_prefill;
  const bool in_place = consumers_rotate(is_prefill, shape.head_dim);
  const int num_rotated = rotated_stages(is_prefill, shape.head_dim, shape.block_m);
  const int num_rotations = rotation_stages(is_prefill, shape.head_dim);
  const int windows = table_windows(is_prefill, shape.head_dim);
  // A row of 8-bit elements is one of half as many 16-bit elements.
  const int columns = shape.float8 ? shape.head_dim / 2 : shape.head_dim;
  const int query_tile_bytes = shape.block_m * query_columns(columns) * kQueryElementBytes;
  const int weight_bytes = shape.block_m / shape.warpgroups * shape.block_n * kQueryElementBytes;
  const int scratch = column_scratch_layout(shape.block_m / shape.warpgroups, weight_bytes).bytes;
  Sm90aLayout layout = {};
  int end = 0;
  const auto take = [&end](int bytes) {
    const int begin = end;
    end += bytes;
    return begin;
  };
  const auto take_barriers = [&take](int stages) { return take(stages * kStageBarrierBytes); };
  layout.key_block_bytes = shape.block_n * key_row_bytes(shape.heads * columns);
  layout.value_block_bytes = shape.block_n * value_row_bytes(shape.heads * columns);
  take(shape.stages * layout.key_block_bytes);
  layout.value_ring = take(shape.stages * layout.value_block_bytes);
  layout.rotated_queries = take(num_rotated * query_tile_bytes);
  layout.original =
      take(in_place ? 0 : shape.block_m * shared_row_bytes(shape.head_dim, kQueryElementBytes));
  layout.ones = take(shape.float8 ? 0 : ones_bytes(is_prefill, shape.head_dim));
  layout.rotations = take(num_rotations * rotation_bytes(shape.head_dim));
  layout.table_bytes = block_table_bytes(table_slots(shape.block_n, shape.states), windows);
  layout.table = take(layout.table_bytes);
  layout.positions = take(kWorkTileStages * shape.block_m * 4);
  layout.work_tiles = take(kWorkTileStages * static_cast<int>(sizeof(WorkTile)));
  layout.key_barriers = take_barriers(shape.stages);
  layout.value_barriers = take_barriers(shape.stages);
  layout.stored_barriers = take_barriers(shape.widens || shape.float8 ? 2 * shape.stages : 0);
  layout.rotated_barriers = take_barriers(in_place ? 0 : num_rotated);
  layout.rotation_barriers = take_barriers(num_rotations);
  layout.saved_barriers = take_barriers(in_place ? shape.warpgroups : 0);
  layout.work_tile_barriers = take_barriers(kWorkTileStages);
  layout.window_barriers = take_barriers(windows);
  layout.query_order = take(copy_warps(is_prefill, shape.head_dim) == 2 ? kIssueOrderBytes : 0);
  layout.flags = take(kSharedFlagBytes);
  layout.first_blocks = take(kSharedFlagBytes);
  // Consumers of prefill load biases from global memory, unless products add them.
  const int bias_bytes = shape.multiplies_bias                 ? bias_column_bytes()
                         : shape.key_bias && !shape.is_prefill ? kBiasBytes
                                                               : 0;
  layout.key_biases = take(shape.stages * shape.heads * shape.block_n * bias_bytes);
  layout.bias_ones = take(shape.multiplies_bias ? bias_ones_bytes() : 0);
  // Some of these kernels add runs up without products (TileMemory::kAddsUpRuns), and leave it
  // unused.
  const bool has_selector = shape.page_mass && is_prefill && !shape.float8;
  layout.run_selector = take(has_selector ? run_selector_bytes(shape.block_n / kRunSlots) : 0);
  layout.consumer_scratch = take(is_prefill ? 0 : shape.warpgroups * scratch);
  layout.entries = take(entry_bytes(shape.block_m, shape.states));
  layout.query_scales = take(shape.float8 ? kWorkTileStages * shape.block_m : 0);
  layout.totals = take(shape.float8 ? shape.block_m * shape.head_dim * 4 : 0);
  layout.bytes = end;
  return layout;
}

// The shared memory of a CTA on sm_90a.
inline constexpr int kMaxSm90aBytes = 227 * 1024;

// Returns the shape with multiplies_bias only if shared memory has room for the columns of biases.
constexpr Sm90aShape with_fitting_biases(Sm90aShape shape) {
  if (layout_of(shape).bytes > kMaxSm90aBytes) shape.multiplies_bias = false;
  return shape;
}

}  // namespace lazyrope
