// Launch parameters of the attend kernels that copy boxes of the pool by TMA (family sm90a), and
// the sizes that host and kernels must agree on. runtime/attention fills in the parameters.
//
// "Many rows" means prefill and chunks: the consumer warps divide the rows. Decode has few rows,
// and its consumer warps divide the keys.
#pragma once

#include "abi/attend.h"
#include "abi/tensor_map.h"

namespace lazyrope {

inline constexpr int kOctetSlots = 8;  // slots of the smaller of two TMA boxes

// Tells whether consumers rotate their queries themselves, in place. With many rows of a long
// head_dim, shared memory has no room for the rotated queries of two documents.
constexpr bool consumers_rotate(bool is_prefill, int head_dim) {
  return is_prefill && head_dim > 128;
}
// Returns the number of producer warps of a CTA: one finds where keys and values are, one or two
// copy them, and the others rotate queries or help consumers that do.
constexpr int producer_warps(bool is_prefill, int head_dim) {
  return is_prefill && !consumers_rotate(is_prefill, head_dim) ? 8 : 4;
}
// Returns the number of producer warps that copy. If there are two, the queries of a CTA's first
// work tile are issued before keys and values (pipeline/issue_order.cuh).
constexpr int copy_warps(bool is_prefill, int head_dim) {
  return producer_warps(is_prefill, head_dim) == 8 ? 2 : 1;
}
inline constexpr int kIssueOrderBytes = 16;
// Stages of work tiles, each with the positions of its rows.
inline constexpr int kWorkTileStages = 2;
// Greatest number of stages of rotated queries, and of shared rotations.
inline constexpr int kMaxRotatedStages = 2;
// Returns the number of stages of rotated queries: one if shared memory has no room for the queries
// of the next document.
constexpr int rotated_stages(bool is_prefill, int head_dim, int rows) {
  const bool has_room = is_prefill ? !consumers_rotate(true, head_dim) : rows <= 16;
  return has_room ? kMaxRotatedStages : 1;
}
// A shared rotation is one by which many rows are rotated together (ops/rotate_tile.cuh). A
// producer warp computes its cosines and sines, 2 bytes per column. A flag follows: it tells the
// rotators whether the stage has a rotation.
constexpr int rotation_exists_offset(int head_dim) { return head_dim * 2; }
constexpr int rotation_bytes(int head_dim) { return rotation_exists_offset(head_dim) + 16; }
constexpr int rotation_stages(bool is_prefill, int head_dim) {
  return !is_prefill ? 0 : consumers_rotate(is_prefill, head_dim) ? kMaxRotatedStages : 1;
}

// Returns the number of windows of the block table, of 480 or 512 slots each. The scheduler fills
// one while other warps read another. Queries are rotated for a document as soon as a window has
// its first block. With a short head_dim, products reach that block so soon that it must be known a
// document ahead. The number is a power of two, because the main loop computes the index of a
// window from that of a block.
constexpr int table_windows(bool is_prefill, int head_dim) {
  return is_prefill && head_dim < 128 ? 4 : 2;
}

// Tells whether the PV products also sum the softmax weights, by a panel of ones after the panel of
// values. Its 16 rows serve all products. Lanes that added the weights themselves would have to
// wait for every exponential.
constexpr bool adds_weights(bool is_prefill, int head_dim) { return is_prefill && head_dim == 64; }
// Returns the accumulator columns of many rows: head_dim, and eight for the sums of the weights if
// products add these.
constexpr int row_columns(int head_dim) {
  return head_dim + (adds_weights(true, head_dim) ? 8 : 0);
}
// Returns the columns that one product computes: half of them if registers do not suffice for all.
// A kernel of 512 threads is compiled for 128 registers, and a kernel of 384 threads for 168,
// whatever setmaxnreg gives its warps.
constexpr int columns_at_once(int columns) { return columns > 192 ? columns / 2 : columns; }
constexpr int ones_bytes(bool is_prefill, int head_dim) {
  return adds_weights(is_prefill, head_dim) ? 16 * 128 : 0;
}

// Products of queries and keys take 16 columns at once. Tells whether the rows of the tiles are
// padded to these: with head_dim 72.
constexpr bool is_padded(int head_dim) { return head_dim % 16 != 0; }
// Returns the columns of a row of queries, with the padding.
constexpr int query_columns(int head_dim) { return (head_dim + 15) / 16 * 16; }
// Returns the bytes of a row of one panel. Each panel is swizzled by itself, and a row of 16-bit
// elements is a whole number of panels. The panels of a padded row of values have 128 bytes. So do
// those of keys, but the last panel of keys has the columns of one product alone. Each panel of a
// padded row is copied by itself, and TMA writes zeros for the columns that the pool's row does not
// have.
constexpr int panel_bytes(int head_dim) {
  return head_dim % 64 == 0 || is_padded(head_dim) ? 128 : head_dim % 32 == 0 ? 64 : 32;
}
// Returns the bytes of a row of the last panel of padded keys.
constexpr int last_key_panel_bytes() { return 32; }
// Returns the bytes of a row of values with 16-bit elements.
constexpr int value_row_bytes(int head_dim) {
  const int panel = panel_bytes(head_dim);
  return (2 * head_dim + panel - 1) / panel * panel;
}
// Returns the bytes of a row of keys with 16-bit elements.
constexpr int key_row_bytes(int head_dim) { return 2 * query_columns(head_dim); }

// Tensor maps of two boxes: `runs` copies a run (two octets of slots), `smaller` one octet. A box
// has all panels of one head, or the only panel of each of two heads. Of padded rows, which few
// rows never have, `runs` copies a panel of 128 bytes of a run, and `smaller` its last panel of
// keys.
struct BoxMaps {
  TensorMap runs;
  TensorMap smaller;
};

// The pool as TMA copies see it. The dimensions, innermost first, are: columns of a panel (of a
// head if its row is padded), slots of an octet, panels, octets, and the rest of pages and heads.
// Slot s of page p of head h is in octet octets_per_page * p + s / 8, at heads_per_page * p + h of
// the last dimension. One of octets_per_page and heads_per_page is 0.
struct PoolMaps {
  BoxMaps keys;
  BoxMaps values;
  int32 octets_per_page;
  int32 heads_per_page;
};

// Launch parameters of family sm90a. Kernels without tensor maps get `attend` alone.
struct TmaAttendParams {
  AttendParams attend;
  PoolMaps maps;
};
static_assert(sizeof(TmaAttendParams) == 256 + 4 * 128 + 64);

}  // namespace lazyrope
