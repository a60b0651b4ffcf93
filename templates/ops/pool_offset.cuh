// Offsets of slots in the KV pool.
#pragma once

#include "abi/attend.h"
#include "isa/sync.cuh"

namespace lazyrope {

// Returns the offset in bytes of one head of a slot, in the tensor of keys or of values. An offset
// inside a page fits 32 bits (the host checks it); that of a page may need 64.
LAZYROPE_DEVICE uint64 pool_offset(const KvPool& pool, int32 page, int32 slot, int32 head = 0) {
  return static_cast<uint64>(static_cast<uint32>(page)) * pool.page_stride +
         static_cast<uint32>(slot) * pool.slot_stride +
         static_cast<uint32>(head) * pool.head_stride;
}

}  // namespace lazyrope
