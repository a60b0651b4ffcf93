// Launch parameters of attend kernels that copy boxes of the pool (family sm90a).
#pragma once

#include "abi/attend.h"
#include "abi/tensor_map.h"

namespace lazyrope {

// The pool as [heads, pages, panels, slots, panel columns] elements, innermost last: a box is eight
// slots, all panels, of one head and page; of `value_rows` one slot and one panel.
struct PoolMaps {
  TensorMap keys;
  TensorMap values;
  TensorMap value_rows;
};

inline constexpr int kOctetSlots = 8;

// Bytes of a row's panel, each of which is swizzled by itself; a row of 16-bit elements has whole
// panels.
constexpr int panel_bytes(int head_dim) {
  return head_dim % 64 == 0 ? 128 : head_dim % 32 == 0 ? 64 : 32;
}

struct TmaAttendParams {
  AttendParams attend;
  PoolMaps maps;
};
static_assert(sizeof(TmaAttendParams) == 256 + 3 * 128);

}  // namespace lazyrope
