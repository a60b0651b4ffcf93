// Conformance kernels for mbarriers and for the bulk copies that they count.
#pragma once

#include "isa/bulk_copy.cuh"
#include "isa/mbarrier.cuh"
#include "isa/sync.cuh"
#include "tests/isa/kernels/params.h"

namespace lazyrope {

// Shared memory begins with two barriers; the data begins at byte kDataAt.
inline constexpr int32 kDataAt = 1024;
inline constexpr int32 kPhases = 6;

LAZYROPE_DEVICE SharedPtr mbarrier_at(int32 i) { return dynamic_shared_memory() + 8 * i; }
LAZYROPE_DEVICE SharedPtr data_at(int32 bytes) { return dynamic_shared_memory() + kDataAt + bytes; }

LAZYROPE_DEVICE void begin_mbarriers(uint32 count) {
  if (thread_index() == 0) {
    mbarrier_init(mbarrier_at(0), count);
    mbarrier_init(mbarrier_at(1), count);
    fence_mbarrier_init_release_cluster();
  }
  bar_sync();
}
LAZYROPE_DEVICE void wait_mbarrier(int32 i, uint32 parity) {
  while (!mbarrier_try_wait_parity(mbarrier_at(i), parity)) {
  }
}
LAZYROPE_DEVICE void end_mbarriers() {
  bar_sync();
  if (thread_index() == 0) {
    mbarrier_inval(mbarrier_at(0));
    mbarrier_inval(mbarrier_at(1));
  }
}

// In each phase every thread publishes a word and combines it with that of another thread. The
// output is the words of all threads, phase by phase.
LAZYROPE_DEVICE void phases(const ConformanceParams& params) {
  const int32 t = thread_index();
  const int32 threads = block_threads();
  begin_mbarriers(static_cast<uint32>(threads));
  uint32 value = ld_global(params.input + t);
  for (int32 phase = 0; phase < kPhases; ++phase) {
    const uint32 parity = static_cast<uint32>(phase % 2);
    // The previous phase is complete, because wait_mbarrier() returned: a test must succeed.
    while (!mbarrier_test_wait_parity(mbarrier_at(0), parity ^ 1u)) {
    }
    st_shared(data_at(4 * t), value);
    mbarrier_arrive(mbarrier_at(0));
    wait_mbarrier(0, parity);
    value = value * 3u + ld_shared<uint32>(data_at(4 * ((t + phase + 1) % threads)));
    st_global(params.output + phase * threads + t, value);
    mbarrier_arrive(mbarrier_at(1));
    wait_mbarrier(1, parity);
  }
  end_mbarriers();
}

// The input describes each copy by three words: its first source word, its number of words and its
// first word in shared memory. The source words follow. In each phase two threads issue one copy
// each. The output is kCopiedWords of shared memory after each phase.
inline constexpr int32 kCopiedWords = 512;
inline constexpr int32 kCopyWords = 3;  // words that describe a copy

LAZYROPE_DEVICE void copy_in(const ConformanceParams& params, int32 copy) {
  const uint32* copies = params.input + copy * kCopyWords;
  const uint32* words = params.input + params.count * 2 * kCopyWords;
  const uint32 bytes = 4 * ld_global(copies + 1);
  const SharedPtr to = data_at(4 * static_cast<int32>(ld_global(copies + 2)));
  if (copy % 2 == 0) {
    mbarrier_arrive_expect_tx(mbarrier_at(0), bytes);
    cp_async_bulk_shared_global(to, words + ld_global(copies), bytes, mbarrier_at(0));
  } else {
    mbarrier_expect_tx(mbarrier_at(0), bytes);
    cp_async_bulk_shared_global(to, words + ld_global(copies), bytes, mbarrier_at(0));
    mbarrier_arrive(mbarrier_at(0));
  }
}

LAZYROPE_DEVICE void loads(const ConformanceParams& params) {
  const int32 t = thread_index();
  begin_mbarriers(2);
  for (int32 phase = 0; phase < params.count; ++phase) {
    if (t == 0 || t == 33) copy_in(params, 2 * phase + t / 33);
    wait_mbarrier(0, static_cast<uint32>(phase % 2));
    for (int32 i = t; i < kCopiedWords; i += block_threads())
      st_global(params.output + phase * kCopiedWords + i, ld_shared<uint32>(data_at(4 * i)));
    bar_sync();
  }
  end_mbarriers();
}

// The input has the same form. The threads store the changed words in shared memory, and the copies
// write runs of them to the output, which is zero elsewhere.
LAZYROPE_DEVICE void stores(const ConformanceParams& params) {
  const int32 t = thread_index();
  const uint32* words = params.input + params.count * kCopyWords;
  for (int32 i = t; i < kCopiedWords; i += block_threads()) {
    st_global(params.output + i, 0u);
    st_shared(data_at(4 * i), ld_global(words + i) ^ 0x0f0f0f0fu);
  }
  fence_proxy_async_global();
  fence_proxy_async();
  bar_sync();
  if (t != 5) return;
  for (int32 copy = 0; copy < params.count; ++copy) {
    const uint32* one = params.input + copy * kCopyWords;
    const int32 from = 4 * static_cast<int32>(ld_global(one + 2));
    cp_async_bulk_global_shared(params.output + ld_global(one), data_at(from),
                                4 * ld_global(one + 1));
    cp_async_bulk_commit_group();
    // After the first wait a copy's source may be changed. After the second one, the destination of
    // the copy before it may be read.
    cp_async_bulk_wait_group_read<0>();
    st_shared(data_at(from), 0xffffffffu);
    if (copy % 2 == 1) {
      cp_async_bulk_wait_group<1>();
      st_global(params.output + kCopiedWords + copy / 2,
                ld_global(params.output + ld_global(one - kCopyWords)));
    }
    fence_proxy_async();
  }
  cp_async_bulk_wait_group<0>();
}

LAZYROPE_DEVICE void conformance_kernel(const ConformanceParams& params) {
  if (params.which == Case::kPhases)
    phases(params);
  else if (params.which == Case::kBulkLoad)
    loads(params);
  else
    stores(params);
}

}  // namespace lazyrope
