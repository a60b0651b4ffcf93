// The bias of keys. A kernel whose spec has key_bias adds a number to the scores of each key, the
// same for all queries of a KV head, after scale, temperature and softcap:
//   weight of key j ~ exp(score_j + bias_j).
// runtime/attention fills it in.
#pragma once

#include "abi/attend_tma.h"
#include "abi/shared_layout.h"

namespace lazyrope {

inline constexpr int kBiasChunkFloats = kChunkBytes / kBiasBytes;

// A tensor [pages, kv_heads, slots], fp32, natural logarithms. The slots of a page are contiguous.
// Offsets count chunks of 16 bytes: a run of 16 slots is four whole ones, and 32 bits then suffice
// for 64 GiB.
struct KeyBias {
  const float* data;  // aligned to 16 bytes
  uint32 page_chunks;
  uint32 head_chunks;
};
static_assert(sizeof(KeyBias) == 16);

// Launch parameters of an attend kernel with a key bias: first those of one without it.
template <class Params>
struct BiasedParams : Params {
  KeyBias key_bias;
};
static_assert(sizeof(BiasedParams<AttendParams>) == 256 + 16);
static_assert(sizeof(BiasedParams<TmaAttendParams>) == 832 + 64);

}  // namespace lazyrope
