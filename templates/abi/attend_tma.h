// Launch parameters of attend kernels that copy boxes of the pool (family sm90a).
#pragma once

#include "abi/attend.h"
#include "abi/tensor_map.h"

namespace lazyrope {

inline constexpr int kOctetSlots = 8;

// Whether those who compute turn their queries themselves, where these have been brought. Of many
// long rows there would be no room for the queries of two documents.
constexpr bool consumers_rotate(bool has_many_rows, int head_dim) {
  return has_many_rows && head_dim > 128;
}
// A CTA of theirs: a warp that finds where keys and values lie, one or two that bring them, and
// such that turn queries, or help consumers who do.
constexpr int producer_warps(bool has_many_rows, int head_dim) {
  return has_many_rows && !consumers_rotate(has_many_rows, head_dim) ? 8 : 4;
}
// Where there are two, the queries of a CTA's first work tile come before keys and values.
constexpr int copy_warps(bool has_many_rows, int head_dim) {
  return producer_warps(has_many_rows, head_dim) == 8 ? 2 : 1;
}
inline constexpr int kIssueOrderBytes = 16;
// In how many places at once there are turned queries, or what they are turned by, at the most;
// work tiles with the positions of their rows.
inline constexpr int kMaxRotatedStages = 2;
// Of turned queries: one where there is no room for those of the next document.
constexpr int rotated_stages(bool has_many_rows, int head_dim, int rows) {
  const bool has_room = has_many_rows ? !consumers_rotate(true, head_dim) : rows <= 16;
  return has_room ? kMaxRotatedStages : 1;
}
inline constexpr int kWorkTileStages = 2;
// What many rows' queries are turned by together (ops/rotate_tile.cuh), as a helper has found it,
// and behind it whether there is one, where its maker tells; others who turn have soon read it.
constexpr int rotation_exists_offset(int head_dim) { return head_dim * 2; }
constexpr int rotation_bytes(int head_dim) { return rotation_exists_offset(head_dim) + 16; }
constexpr int rotation_stages(bool has_many_rows, int head_dim) {
  return !has_many_rows ? 0 : consumers_rotate(has_many_rows, head_dim) ? kMaxRotatedStages : 1;
}

// Windows of 480 or 512 slots in the block table: one is found while another is used. Queries are
// turned for a document as soon as a window has its first block: products of short rows come to it
// so soon that it has to be known a document ahead. A power of two: places are found in the main
// loop.
constexpr int table_windows(bool has_many_rows, int head_dim) {
  return has_many_rows && head_dim < 128 ? 4 : 2;
}

// Of the shortest rows products also add weights up: a panel of ones lies behind that of values, of
// which a product's 16 rows suffice for all. Lanes that add have to await every exponential.
constexpr bool adds_weights(bool has_many_rows, int head_dim) {
  return has_many_rows && head_dim == 64;
}
// Columns of many rows' results, with those that are sums; and of these how many products make
// together: for more columns there are no registers. A kernel of 512 threads is compiled for 128,
// one of 384 for 168, whatever its warps have when they come to it.
constexpr int row_columns(int head_dim) {
  return head_dim + (adds_weights(true, head_dim) ? 8 : 0);
}
constexpr int columns_at_once(int columns) { return columns > 192 ? columns / 2 : columns; }
constexpr int ones_bytes(bool has_many_rows, int head_dim) {
  return adds_weights(has_many_rows, head_dim) ? 16 * 128 : 0;
}

// Bytes of a row's panel, each of which is swizzled by itself; a row of 16-bit elements has whole
// panels.
constexpr int panel_bytes(int head_dim) {
  return head_dim % 64 == 0 ? 128 : head_dim % 32 == 0 ? 64 : 32;
}

// Boxes of a pool: a run, two octets of slots, or one of them; all panels of a head, or of two
// heads the only one.
struct BoxMaps {
  TensorMap runs;
  TensorMap octets;
};

// The pool as copies of boxes see it. Dimensions, the innermost first: columns of a panel, slots of
// an octet, panels, octets, and what is left of pages and heads. Slot s of page p of head h lies in
// octet octets_per_page * p + s / 8, at heads_per_page * p + h of the last dimension: one of both
// is 0.
struct PoolMaps {
  BoxMaps keys;
  BoxMaps values;
  int32 octets_per_page;
  int32 heads_per_page;
};

// Kernels without maps take the first part alone.
struct TmaAttendParams {
  AttendParams attend;
  PoolMaps maps;
};
static_assert(sizeof(TmaAttendParams) == 256 + 4 * 128 + 64);

}  // namespace lazyrope
