// Barriers, atomics, ordered loads and stores, and exchange between lanes. PTX ISA 9.0, "Parallel
// Synchronization and Communication Instructions" and "shfl.sync". All 32 lanes of a warp must
// execute an exchange, a vote or elect.sync together.
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

LAZYROPE_DEVICE void bar_sync() { asm volatile("bar.sync 0;" ::: "memory"); }
// bar.sync and bar.arrive of named barrier `id`, 1 to 15. `threads` is the number of threads that
// sync or arrive there, a multiple of 32.
LAZYROPE_DEVICE void bar_sync(int32 id, int32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
LAZYROPE_DEVICE void bar_arrive(int32 id, int32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
LAZYROPE_DEVICE void bar_warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// atom.inc adds one, or resets to 0 a value that is at least `last`. It returns the old value.
LAZYROPE_DEVICE uint32 atom_acq_rel_gpu_inc(uint32* p, uint32 last) {
  uint32 before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(p), "r"(last)
               : "memory");
  return before;
}

LAZYROPE_DEVICE uint32 atom_relaxed_gpu_inc(uint32* p, uint32 last) {
  uint32 before;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(p), "r"(last)
               : "memory");
  return before;
}

LAZYROPE_DEVICE uint32 atom_relaxed_gpu_exch(uint32* p, uint32 value) {
  uint32 before;
  asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(p), "r"(value)
               : "memory");
  return before;
}

LAZYROPE_DEVICE uint32 ld_acquire_gpu(const uint32* p) {
  uint32 value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

// ld.relaxed.gpu of 8 or 16 bytes if `wanted`; otherwise `value` is unchanged. Each 4-byte word is
// a separate access in the memory model.
template <class T>
LAZYROPE_DEVICE void ld_relaxed_gpu_if(bool wanted, const T* p, T& value) {
  const uint32 is_wanted = wanted ? 1 : 0;
  if constexpr (sizeof(T) == 16) {
    auto v = __builtin_bit_cast(Chunk, value);
    asm volatile(
        "{\n\t.reg .pred wanted;\n\tsetp.ne.u32 wanted, %5, 0;\n\t"
        "@wanted ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];\n\t}"
        : "+r"(v.word[0]), "+r"(v.word[1]), "+r"(v.word[2]), "+r"(v.word[3])
        : "l"(p), "r"(is_wanted)
        : "memory");
    value = __builtin_bit_cast(T, v);
  } else {
    static_assert(sizeof(T) == 8);
    auto v = __builtin_bit_cast(Word2, value);
    asm volatile(
        "{\n\t.reg .pred wanted;\n\tsetp.ne.u32 wanted, %3, 0;\n\t"
        "@wanted ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];\n\t}"
        : "+r"(v.word[0]), "+r"(v.word[1])
        : "l"(p), "r"(is_wanted)
        : "memory");
    value = __builtin_bit_cast(T, v);
  }
}
template <class T>
LAZYROPE_DEVICE T ld_relaxed_gpu(const T* p) {
  T value{};
  ld_relaxed_gpu_if(true, p, value);
  return value;
}
template <class T>
LAZYROPE_DEVICE void st_relaxed_gpu(T* p, T value) {
  if constexpr (sizeof(T) == 16) {
    const Chunk v = __builtin_bit_cast(Chunk, value);
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.word[0]),
                 "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])
                 : "memory");
  } else {
    static_assert(sizeof(T) == 8);
    const Word2 v = __builtin_bit_cast(Word2, value);
    asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(v.word[0]),
                 "r"(v.word[1])
                 : "memory");
  }
}

template <class T>
LAZYROPE_DEVICE T shfl_sync_idx(T value, int32 lane) {
  static_assert(sizeof(T) == 4);
  return __shfl_sync(0xffffffffu, value, lane);
}

template <class T>
LAZYROPE_DEVICE T shfl_sync_bfly(T value, int32 mask) {
  static_assert(sizeof(T) == 4);
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

// Lane l receives the value of lane l - delta. Lanes below `delta` keep their own value.
template <class T>
LAZYROPE_DEVICE T shfl_sync_up(T value, int32 delta) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  return __shfl_up_sync(0xffffffffu, value, static_cast<uint32>(delta));
}

LAZYROPE_DEVICE uint32 vote_sync_ballot(bool predicate) {
  return __ballot_sync(0xffffffffu, predicate);
}

LAZYROPE_DEVICE bool vote_sync_any(bool predicate) {
  return __any_sync(0xffffffffu, predicate) != 0;
}

// elect.sync returns true for one lane of the warp, the same one each time (sm_90 and later).
LAZYROPE_DEVICE bool elect_sync() {
  uint32 elected;
  asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.b32 %0, 1, 0, p;\n\t}"
               : "=r"(elected));
  return elected != 0;
}

}  // namespace lazyrope
