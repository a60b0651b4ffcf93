// Loads and stores, in host C++.
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

// A byte address in the CTA's shared memory.
struct SharedPtr {
  uint32 address;
};

inline SharedPtr operator+(SharedPtr p, int32 bytes) {
  return {p.address + static_cast<uint32>(bytes)};
}
inline SharedPtr operator^(SharedPtr p, int32 bits) {
  return {p.address ^ static_cast<uint32>(bits)};
}
inline bool operator==(SharedPtr p, SharedPtr q) { return p.address == q.address; }

inline SharedPtr dynamic_shared_memory() { return {0}; }

template <class T>
inline T* shared_object(SharedPtr p) {
  return reinterpret_cast<T*>(emulator->shared_memory + p.address);
}

template <class T>
inline T copy_of(const void* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof(T));
  return value;
}

template <class T>
inline T ld_shared(SharedPtr p) {
  return copy_of<T>(shared_object<uint8>(p));
}
template <class T>
inline void st_shared(SharedPtr p, T value) {
  __builtin_memcpy(shared_object<uint8>(p), &value, sizeof(T));
}
template <class T>
inline T ld_global_nc(const T* p) {
  return copy_of<T>(p);
}
template <class T>
inline T ld_global(const T* p) {
  return copy_of<T>(p);
}
template <class T>
inline void st_global(T* p, T value) {
  __builtin_memcpy(static_cast<void*>(p), &value, sizeof(T));
}

struct LdmatrixLane {
  SharedPtr row;
  uint32* registers;
};

// Matrix m has its rows at the addresses of lanes 8 m to 8 m + 7; lane l gets elements 2 (l % 4)
// and the next of row l / 4, or of column l / 4 where transposed.
template <bool kTransposed>
inline void ldmatrix_operation(void* const* lanes) {
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    const LdmatrixLane& to = *static_cast<LdmatrixLane*>(lanes[lane]);
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint32 pair = 0;
      for (int half = 0; half < 2; ++half) {
        const int along = lane % 4 * 2 + half;
        const int row = kTransposed ? along : lane / 4;
        const int column = kTransposed ? lane / 4 : along;
        const SharedPtr from = static_cast<LdmatrixLane*>(lanes[matrix * 8 + row])->row;
        const uint16 element = copy_of<uint16>(shared_object<uint8>(from + column * 2));
        pair |= static_cast<uint32>(element) << (16 * half);
      }
      to.registers[matrix] = pair;
    }
  }
}

inline void ldmatrix_x4(uint32 (&r)[4], SharedPtr p) {
  LdmatrixLane lane = {p, r};
  emulator->warp_operation("ldmatrix", ldmatrix_operation<false>, &lane);
}
inline void ldmatrix_x4_trans(uint32 (&r)[4], SharedPtr p) {
  LdmatrixLane lane = {p, r};
  emulator->warp_operation("ldmatrix.trans", ldmatrix_operation<true>, &lane);
}

}  // namespace lazyrope
