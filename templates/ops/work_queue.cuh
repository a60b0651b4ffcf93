// How a CTA goes through its share of the work, and then through what it takes from the queue.
#pragma once

#include "ops/query_rows.cuh"

namespace lazyrope {

class WorkShares {
 public:
  LAZYROPE_DEVICE explicit WorkShares(const WorkView& work)
      : work_(work), rounds_(static_cast<int32>(ld_global_nc(&work.queue->rounds))) {}

  // The first item of the CTA's own share.
  LAZYROPE_DEVICE int32 first_item() const { return block_index() * rounds_; }

  // What follows an item: all threads of the CTA ask(), synchronize, and get the item's number, or
  // -1. `flag` keeps 4 bytes of theirs until then.
  LAZYROPE_DEVICE void ask(int32 next, SharedPtr flag) const {
    if (next >= 0 || rounds_ == 1 || thread_index() != 0) return;
    const auto last = static_cast<uint32>(rounds_ * work_.num_ctas - 1);
    st_shared(flag, atom_acq_rel_gpu_inc(&work_.queue->taken, last));
  }
  LAZYROPE_DEVICE int32 get(int32 next, SharedPtr flag) const {
    if (next >= 0 || rounds_ == 1) return next;
    const auto taken = ld_shared<int32>(flag);
    const int32 round = taken / work_.num_ctas + 1;
    return round == rounds_ ? -1 : taken % work_.num_ctas * rounds_ + round;
  }
  // What follows a share without work.
  LAZYROPE_DEVICE int32 skip(SharedPtr flag) const {
    ask(-1, flag);
    bar_sync();
    return get(-1, flag);
  }

 private:
  const WorkView& work_;
  int32 rounds_;
};

// All threads of the CTA: Tile::run(params, item, memory, shares) of each item, which returns the
// number of the next one, or -1.
template <class Tile>
LAZYROPE_DEVICE void run_shares(const AttendParams& params, SharedPtr memory) {
  const WorkShares shares(params.work);
  int32 item = shares.first_item();
  do
    item = Tile::run(params, params.work.items + item, memory, shares);
  while (item >= 0);
}

}  // namespace lazyrope
