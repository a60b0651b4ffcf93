// Types that every isa folder shares.
#pragma once

#include "abi/types.h"

namespace lazyrope {

struct alignas(8) Word2 {
  uint32 word[2];
};

// 16 bytes: the unit in which tiles are copied, swizzled and loaded.
struct alignas(16) Chunk {
  uint32 word[4];
};

struct FloatPair {
  float low;
  float high;
};

inline constexpr int kWarpThreads = 32;

template <class T>
constexpr T smaller(T a, T b) {
  return a < b ? a : b;
}

template <class T>
constexpr T larger(T a, T b) {
  return a > b ? a : b;
}

constexpr int32 ceil_div(int32 a, int32 b) { return (a + b - 1) / b; }

}  // namespace lazyrope
