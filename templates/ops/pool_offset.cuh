// Where a slot of the pool lies.
#pragma once

#include "abi/attend.h"
#include "isa/sync.cuh"

namespace lazyrope {

// Of a slot's head, in either tensor, in bytes. What lies inside a page fits 32 bits (the host
// checks); a page may lie anywhere.
LAZYROPE_DEVICE uint64 pool_offset(const KvPool& pool, int32 page, int32 slot, int32 head = 0) {
  return static_cast<uint64>(static_cast<uint32>(page)) * pool.page_stride +
         static_cast<uint32>(slot) * pool.slot_stride +
         static_cast<uint32>(head) * pool.head_stride;
}

}  // namespace lazyrope
