// How a CTA goes through its share of the work, and then through what it takes from the queue.
#pragma once

#include "abi/attend.h"
#include "isa/memory.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

// All threads of the CTA: Tile::run(params, item, memory, is_last) of each item; it returns the next
// item of the share, or -1. `is_last` tells of the last item of a share that nothing follows.
template <class Tile>
LAZYROPE_DEVICE void run_shares(const AttendParams& params, SharedPtr memory) {
  const WorkView& work = params.work;
  const auto queued = static_cast<int32>(ld_global_nc(&work.queue->num_shares));
  int32 item = block_index();
  while (true) {
    do
      item = Tile::run(params, work.items + item, memory, queued == 0);
    while (item >= 0);
    if (queued == 0) return;
    bar_sync();  // of the item before nobody reads any more
    if (thread_index() == 0)
      st_shared(memory, atom_acq_rel_gpu_inc(&work.queue->taken,
                                             static_cast<uint32>(queued + work.num_ctas - 1)));
    bar_sync();
    const auto taken = ld_shared<int32>(memory);
    if (taken >= queued) return;
    item = work.num_ctas + taken;
    bar_sync();
  }
}

}  // namespace lazyrope
