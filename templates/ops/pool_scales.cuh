// Scales of a KV pool whose elements have 8 bits. An attended key or value is the stored one times
// the scale of its KV head.
#pragma once

#include "abi/attend.h"
#include "isa/memory.cuh"

namespace lazyrope {

LAZYROPE_DEVICE float pool_scale(const float* scales, uint32 stride, int32 head) {
  if (scales == nullptr) return 1.0f;
  const uint8* at = reinterpret_cast<const uint8*>(scales) + static_cast<uint32>(head) * stride;
  return ld_global_nc(reinterpret_cast<const float*>(at));
}
LAZYROPE_DEVICE float key_scale(const KvPool& pool, int32 head) {
  return pool_scale(pool.key_scales, pool.key_scale_stride, head);
}

// The scales of stored values: results need nothing else of the pool.
struct ValueScales {
  const float* data;
  uint32 stride;

  LAZYROPE_DEVICE explicit ValueScales(const KvPool& pool)
      : data(pool.value_scales), stride(pool.value_scale_stride) {}
  LAZYROPE_DEVICE float of(int32 head) const { return pool_scale(data, stride, head); }
};

}  // namespace lazyrope
