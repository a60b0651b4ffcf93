// Loads and stores: ld, st, prefetch and ldmatrix. PTX ISA 9.0, "Data Movement and Conversion
// Instructions" and "Warp-level matrix load instruction: ldmatrix".
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

// A byte address in the CTA's shared memory.
struct SharedPtr {
  uint32 address;
};

LAZYROPE_DEVICE SharedPtr operator+(SharedPtr p, int32 bytes) {
  return {p.address + static_cast<uint32>(bytes)};
}
// Flips address bits, as a swizzle does. The tile must be aligned so that no flipped bit is set in
// its base address.
LAZYROPE_DEVICE SharedPtr operator^(SharedPtr p, int32 bits) {
  return {p.address ^ static_cast<uint32>(bits)};
}

LAZYROPE_DEVICE bool operator==(SharedPtr p, SharedPtr q) { return p.address == q.address; }

// Returns the start of the CTA's dynamic shared memory, which is aligned to 1024 bytes.
LAZYROPE_DEVICE SharedPtr dynamic_shared_memory() {
  extern __shared__ __align__(1024) unsigned char lazyrope_shared[];
  return {static_cast<uint32>(__cvta_generic_to_shared(lazyrope_shared))};
}

// ld.shared of 4, 8 or 16 bytes.
template <class T>
LAZYROPE_DEVICE T ld_shared(SharedPtr p) {
  if constexpr (sizeof(T) == 16) {
    Chunk v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "r"(p.address));
    return __builtin_bit_cast(T, v);
  } else if constexpr (sizeof(T) == 8) {
    Word2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(v.word[0]), "=r"(v.word[1])
                 : "r"(p.address));
    return __builtin_bit_cast(T, v);
  } else {
    static_assert(sizeof(T) == 4);
    uint32 v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(p.address));
    return __builtin_bit_cast(T, v);
  }
}

// st.shared of 4, 8 or 16 bytes.
template <class T>
LAZYROPE_DEVICE void st_shared(SharedPtr p, T value) {
  if constexpr (sizeof(T) == 16) {
    const Chunk v = __builtin_bit_cast(Chunk, value);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(p.address), "r"(v.word[0]),
                 "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    const Word2 v = __builtin_bit_cast(Word2, value);
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(p.address), "r"(v.word[0]), "r"(v.word[1])
                 : "memory");
  } else {
    static_assert(sizeof(T) == 4);
    const uint32 v = __builtin_bit_cast(uint32, value);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(p.address), "r"(v) : "memory");
  }
}

// A generic address: it is in shared or in global memory.
struct GenericPtr {
  uint64 address;
};

LAZYROPE_DEVICE GenericPtr operator+(GenericPtr p, int64 bytes) {
  return {p.address + static_cast<uint64>(bytes)};
}
LAZYROPE_DEVICE GenericPtr generic(SharedPtr p) {
  uint64 address;
  asm volatile("cvta.shared.u64 %0, %1;" : "=l"(address) : "l"(static_cast<uint64>(p.address)));
  return {address};
}
LAZYROPE_DEVICE GenericPtr generic(void* global) { return {reinterpret_cast<uint64>(global)}; }

template <class T>
LAZYROPE_DEVICE T ld_generic(GenericPtr p) {
  return *reinterpret_cast<const T*>(p.address);
}
template <class T>
LAZYROPE_DEVICE void st_generic(GenericPtr p, T value) {
  *reinterpret_cast<T*>(p.address) = value;
}

// ld.global.nc of 4, 8 or 16 bytes, for memory that no thread writes while the kernel runs.
template <class T>
LAZYROPE_DEVICE T ld_global_nc(const T* p) {
  if constexpr (sizeof(T) == 16) {
    Chunk v;
    asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(p));
    return __builtin_bit_cast(T, v);
  } else if constexpr (sizeof(T) == 8) {
    Word2 v;
    asm volatile("ld.global.nc.v2.b32 {%0, %1}, [%2];" : "=r"(v.word[0]), "=r"(v.word[1]) : "l"(p));
    return __builtin_bit_cast(T, v);
  } else {
    static_assert(sizeof(T) == 4);
    uint32 v;
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v) : "l"(p));
    return __builtin_bit_cast(T, v);
  }
}

// prefetch.global.L2 fetches the line of `p` into L2. `p` need not be a valid address.
LAZYROPE_DEVICE void prefetch_global_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

template <class T>
LAZYROPE_DEVICE T ld_global(const T* p) {
  return *p;
}

template <class T>
LAZYROPE_DEVICE void st_global(T* p, T value) {
  *p = value;
}

// ldmatrix.m8n8.x4 loads four 8 x 8 matrices of 16-bit elements, matrix i into r[i]. Lane l passes
// the address of row l % 8 of matrix l / 8.
LAZYROPE_DEVICE void ldmatrix_x4(uint32 (&r)[4], SharedPtr p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(p.address));
}

// Does the same and transposes each matrix (ldmatrix.trans).
LAZYROPE_DEVICE void ldmatrix_x4_trans(uint32 (&r)[4], SharedPtr p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(p.address));
}

}  // namespace lazyrope
