// Types and integer helpers that isa/ptx and isa/emu share.
#pragma once

#include "abi/types.h"

namespace lazyrope {

template <int kCount>
struct alignas(4 * kCount) Words {
  uint32 word[kCount];
};
using Word2 = Words<2>;

template <int kCount>
struct alignas(kCount) Bytes {
  uint8 byte[kCount];
};

// 16 bytes, the unit in which the kernels copy, swizzle and load tiles.
struct alignas(16) Chunk {
  uint32 word[4];
};

struct FloatPair {
  float low;
  float high;
};

inline constexpr int kWarpThreads = 32;
inline constexpr float kLog2e = 1.44269504088896341f;
inline constexpr float kLn2 = 0.693147180559945309f;

template <class T>
constexpr T smaller(T a, T b) {
  return a < b ? a : b;
}

template <class T>
constexpr T larger(T a, T b) {
  return a > b ? a : b;
}

constexpr bool is_power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }

constexpr int floor_power_of_two(int n) {
  int power = 1;
  while (2 * power <= n) power *= 2;
  return power;
}

constexpr int32 ceil_div(int32 a, int32 b) { return (a + b - 1) / b; }

}  // namespace lazyrope
