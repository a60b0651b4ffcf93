// Conformance kernels for thread and CTA indices, and for communication between CTAs by global
// memory.
#pragma once

#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "tests/isa/kernels/params.h"

namespace lazyrope {

LAZYROPE_DEVICE void indices(const ConformanceParams& params) {
  const int32 here[6] = {thread_index(), block_index(), block_threads(),
                         grid_blocks(),  lane_index(),  warp_index()};
  uint32* to = params.output + 6 * (block_index() * block_threads() + thread_index());
  for (int32 i = 0; i < 6; ++i) st_global(to + i, static_cast<uint32>(here[i]));
}

// The input has two words per thread: one that its atomics change, and their operand. The output is
// what each atomic returns, in order, and the final value.
LAZYROPE_DEVICE void atomics(const ConformanceParams& params) {
  const int32 i = block_index() * block_threads() + thread_index();
  uint32* own = params.input + 2 * i;
  const uint32 operand = ld_global(params.input + 2 * i + 1);
  uint32* to = params.output + 4 * i;
  st_global(to, atom_acq_rel_gpu_inc(own, operand));
  st_global(to + 1, atom_acq_rel_gpu_inc(own, operand));
  st_global(to + 2, atom_relaxed_gpu_exch(own, operand ^ 0x55u));
  st_global(to + 3, ld_acquire_gpu(own));
}

// The input has eight words per thread: two as above, two unused, and four that the thread copies,
// all at once and in pairs.
LAZYROPE_DEVICE void relaxed(const ConformanceParams& params) {
  const int32 i = block_index() * block_threads() + thread_index();
  uint32* own = params.input + 8 * i;
  uint32* to = params.output + 12 * i;
  st_relaxed_gpu(reinterpret_cast<Chunk*>(to),
                 ld_relaxed_gpu(reinterpret_cast<const Chunk*>(own + 4)));
  const Word2 low = ld_relaxed_gpu(reinterpret_cast<const Word2*>(own + 4));
  Word2 high = low;
  ld_relaxed_gpu_if(true, reinterpret_cast<const Word2*>(own + 6), high);
  ld_relaxed_gpu_if(false, reinterpret_cast<const Word2*>(own + 4), high);
  st_relaxed_gpu(reinterpret_cast<Word2*>(to + 4), high);
  st_relaxed_gpu(reinterpret_cast<Word2*>(to + 6), low);
  const uint32 operand = ld_global(own + 1);
  st_global(to + 8, atom_relaxed_gpu_inc(own, operand));
  st_global(to + 9, atom_relaxed_gpu_inc(own, operand));
  st_global(to + 10, ld_acquire_gpu(own));
  st_global(to + 11, operand);
}

// Each CTA stores a row and increments a counter; the last CTA adds the rows. The input is the
// counter, a flag, two unused words, the values, and room for the rows. The output is the sums, the
// final counter and flag, and a word for each value that the counter returned.
LAZYROPE_DEVICE void last_cta(const ConformanceParams& params) {
  const int32 threads = block_threads();
  const int32 ctas = grid_blocks();
  const int32 t = thread_index();
  uint32* counter = params.input;
  const uint32* values = params.input + 4;
  uint32* rows = params.input + 4 + ctas * threads;
  const int32 mine = block_index() * threads + t;
  st_global(rows + mine, ld_global_nc(values + mine) + 1u);
  bar_sync();
  const SharedPtr slot = dynamic_shared_memory();
  if (t == 0) {
    const uint32 before = atom_acq_rel_gpu_inc(counter, static_cast<uint32>(ctas - 1));
    st_global(params.output + threads + 2 + before, before * 3u + 1u);
    if (static_cast<int32>(before) == ctas - 1) atom_relaxed_gpu_exch(counter + 1, 77u);
    st_shared(slot, before);
  }
  bar_sync();
  if (static_cast<int32>(ld_shared<uint32>(slot)) != ctas - 1) return;
  uint32 sum = 0;
  for (int32 i = 0; i < ctas; ++i) sum += ld_global(rows + i * threads + t);
  st_global(params.output + t, sum);
  if (t < 2) st_global(params.output + threads + t, ld_acquire_gpu(counter + t));
}

LAZYROPE_DEVICE void conformance_kernel(const ConformanceParams& params) {
  if (params.which == Case::kIndices)
    indices(params);
  else if (params.which == Case::kAtomics)
    atomics(params);
  else if (params.which == Case::kRelaxed)
    relaxed(params);
  else
    last_cta(params);
}

}  // namespace lazyrope
