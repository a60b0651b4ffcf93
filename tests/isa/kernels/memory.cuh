// Conformance kernels for loads, stores and asynchronous copies by one CTA.
#pragma once

#include "isa/async_copy.cuh"
#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "tests/isa/kernels/params.h"

namespace lazyrope {

// Returns the address of element i of an array of T at `p`.
template <class T>
LAZYROPE_DEVICE T* element(uint32* p, int32 i) {
  return reinterpret_cast<T*>(p) + i;
}

// Passes each thread's element through shared memory to the thread whose index differs in the bits
// of kFlip.
template <class T>
LAZYROPE_DEVICE void pass_on(const ConformanceParams& params, int32 first_word) {
  constexpr int32 kFlip = 5;
  constexpr int32 kSize = static_cast<int32>(sizeof(T));
  const SharedPtr mine = dynamic_shared_memory() + thread_index() * kSize;
  st_shared(mine, ld_global(element<T>(params.input + first_word, thread_index())));
  bar_sync();
  const T got = ld_shared<T>(mine ^ (kFlip * kSize));
  bar_sync();
  st_global(element<T>(params.output + first_word, thread_index()), got);
}

// The output is the exchanged elements of 4, 4, 8, 8 and 16 bytes per thread, then the results of
// comparing addresses.
LAZYROPE_DEVICE void shared_memory(const ConformanceParams& params) {
  const int32 threads = block_threads();
  pass_on<float>(params, 0);
  pass_on<int32>(params, threads);
  pass_on<Word2>(params, 2 * threads);
  pass_on<int64>(params, 4 * threads);
  pass_on<Chunk>(params, 6 * threads);
  const SharedPtr base = dynamic_shared_memory();
  const SharedPtr mine = base + 16 * thread_index();
  const bool same = mine + -16 * thread_index() == base;
  const bool differs = mine == base + 16 * (thread_index() + 1);
  st_global(params.output + 10 * threads + thread_index(), (same ? 1u : 0u) + (differs ? 2u : 0u));
}

// Passes each thread's element through shared memory to the next thread, by generic addresses.
template <class T>
LAZYROPE_DEVICE void hand_on(const ConformanceParams& params, int32 first_word) {
  constexpr int64 kSize = sizeof(T);
  const int32 behind = (thread_index() + 1) % block_threads();
  const GenericPtr shared = generic(dynamic_shared_memory());
  st_generic(shared + kSize * behind,
             ld_generic<T>(generic(params.input + first_word) + kSize * thread_index()));
  bar_sync();
  const T got = ld_generic<T>(shared + kSize * thread_index());
  bar_sync();
  st_generic(generic(params.output + first_word) + kSize * thread_index(), got);
}

LAZYROPE_DEVICE void generic_memory(const ConformanceParams& params) {
  const int32 threads = block_threads();
  hand_on<int32>(params, 0);
  hand_on<Chunk>(params, threads);
}

// Copies the elements of the threads in reversed order, so that loads and stores of neighbouring
// bytes meet in different threads.
template <class T, bool kNonCoherent>
LAZYROPE_DEVICE void copy_reversed(const ConformanceParams& params, int32 first_word) {
  const int32 last = block_threads() - 1;
  const T* from = element<T>(params.input + first_word, thread_index());
  prefetch_global_l2(from);
  T value;
  if constexpr (kNonCoherent)
    value = ld_global_nc(from);
  else
    value = ld_global(from);
  st_global(element<T>(params.output + first_word, last - thread_index()), value);
}

// Copies elements of 1, 2, 4, 8 and 16 bytes by ld.global, and of 4, 8 and 16 by ld.global.nc.
LAZYROPE_DEVICE void global_memory(const ConformanceParams& params) {
  const int32 threads = block_threads();
  copy_reversed<Chunk, false>(params, 0);
  copy_reversed<Chunk, true>(params, 4 * threads);
  copy_reversed<int64, false>(params, 8 * threads);
  copy_reversed<Word2, true>(params, 10 * threads);
  copy_reversed<uint32, false>(params, 12 * threads);
  copy_reversed<float, true>(params, 13 * threads);
  copy_reversed<uint16, false>(params, 14 * threads);
  copy_reversed<uint8, false>(params, 14 * threads + threads / 2);
}

LAZYROPE_DEVICE void copy(Case which, SharedPtr to, const uint32* from, int32 bytes) {
  if (which == Case::kCopy16)
    cp_async_cg_16<false>(to, from, bytes);
  else if (which == Case::kCopy16WholeLines)
    cp_async_cg_16<true>(to, from, bytes);
  else
    cp_async_ca_4(to, from);
}

// The input describes each copy by `to`, `from` (both byte offsets) and `bytes`; the source words
// follow. Each thread issues two copies, one per group, and reads the first one before it waits for
// the second one. Then the CTA reads all copies.
LAZYROPE_DEVICE void async_copies(const ConformanceParams& params) {
  const int32 size = params.which == Case::kCopy4 ? 4 : 16;
  const int32 words = size / 4;
  const int32 threads = block_threads();
  const SharedPtr base = dynamic_shared_memory();
  SharedPtr first = base;
  for (int32 group = 0; group < 2; ++group) {
    const uint32* entry = params.input + 3 * (group * threads + thread_index());
    const SharedPtr to = base + static_cast<int32>(ld_global(entry));
    const int32 bytes = static_cast<int32>(ld_global(entry + 2));
    copy(params.which, to, params.input + 6 * threads + ld_global(entry + 1) / 4, bytes);
    cp_async_commit_group();
    if (group == 0) first = to;
  }
  cp_async_wait_group<1>();
  for (int32 i = 0; i < words; ++i)
    st_global(params.output + words * thread_index() + i, ld_shared<uint32>(first + 4 * i));
  cp_async_wait_group<0>();
  bar_sync();
  for (int32 i = thread_index(); i < 2 * threads * words; i += threads)
    st_global(params.output + threads * words + i, ld_shared<uint32>(base + 4 * i));
}

LAZYROPE_DEVICE void conformance_kernel(const ConformanceParams& params) {
  if (params.which == Case::kShared)
    shared_memory(params);
  else if (params.which == Case::kGeneric)
    generic_memory(params);
  else if (params.which == Case::kGlobal)
    global_memory(params);
  else
    async_copies(params);
}

}  // namespace lazyrope
