// Stages of shared memory that producers fill and consumers read. Each stage has two mbarriers: one
// says that the stage is full, the other that it is empty.
#pragma once

#include "isa/mbarrier.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

template <int kStageCount>
struct Pipeline {
  static constexpr int kStages = kStageCount;
  static constexpr int kBytes = kStages * 16;

  // One thread: how many arrive as a stage is filled, and when it has been used.
  LAZYROPE_DEVICE static void init(SharedPtr memory, uint32 producers, uint32 consumers) {
#pragma unroll
    for (int32 i = 0; i < 2 * kStages; ++i)
      mbarrier_init(memory + i * 8, i % 2 == 0 ? producers : consumers);
    fence_mbarrier_init_release_cluster();
  }
};

// One thread's view of a pipeline, from the producers' or the consumers' side. The thread takes
// part in every phase of a stage. A thread that learns of a phase from something else may only
// wait, or only signal.
template <bool kProduces>
class PipelineSide {
 public:
  LAZYROPE_DEVICE explicit PipelineSide(SharedPtr memory)
      : memory_(memory), phases_(kProduces ? ~0u : 0u) {}

  // Replaces acquire() or wait() where something else has shown that the phase is complete.
  LAZYROPE_DEVICE void flip_phase(int32 stage) { phases_ ^= 1u << stage; }
  // Waits as acquire() and wait() do, but keeps the phase: the thread waits for the stage once
  // more.
  LAZYROPE_DEVICE void await_phase(int32 stage) const {
    while (!mbarrier_try_wait_parity(wait_barrier(stage), parity(stage))) {
    }
  }
  // Whether acquire() or wait() would return at once.
  LAZYROPE_DEVICE bool try_wait(int32 stage) const {
    return mbarrier_test_wait_parity(wait_barrier(stage), parity(stage));
  }

  // The mbarrier that this side arrives at: the producers' is the full one, the consumers' the
  // empty one.
  LAZYROPE_DEVICE SharedPtr signal_barrier(int32 stage) const {
    return memory_ + stage * 16 + (kProduces ? 0 : 8);
  }

  // The mbarrier that this side waits for.
  LAZYROPE_DEVICE SharedPtr wait_barrier(int32 stage) const {
    return memory_ + stage * 16 + (kProduces ? 8 : 0);
  }

 protected:
  LAZYROPE_DEVICE void await_and_flip(int32 stage, bool is_ready) {
    if (!is_ready) await_phase(stage);
    phases_ ^= 1u << stage;
  }
  // A warp, all of whose lanes have done with the stage.
  LAZYROPE_DEVICE void signal(int32 stage) const {
    bar_warp_sync();
    if (elect_sync()) mbarrier_arrive(signal_barrier(stage));
  }

 private:
  LAZYROPE_DEVICE uint32 parity(int32 stage) const { return phases_ >> stage & 1; }

  SharedPtr memory_;
  uint32 phases_;  // a bit a stage
};

class PipelineProducer : public PipelineSide<true> {
 public:
  using PipelineSide<true>::PipelineSide;

  // Waits until the stage is empty. `is_ready`: what try_wait() has returned for it.
  LAZYROPE_DEVICE void acquire(int32 stage, bool is_ready = false) {
    await_and_flip(stage, is_ready);
  }
  // A warp has filled the stage.
  LAZYROPE_DEVICE void commit(int32 stage) const { signal(stage); }
};

class PipelineConsumer : public PipelineSide<false> {
 public:
  using PipelineSide<false>::PipelineSide;

  // Waits until the stage is full. `is_ready`: what try_wait() has returned for it.
  LAZYROPE_DEVICE void wait(int32 stage, bool is_ready = false) { await_and_flip(stage, is_ready); }
  // A warp has done with the stage.
  LAZYROPE_DEVICE void release(int32 stage) const { signal(stage); }
};

// The stage whose turn it is in a ring.
template <int kStages>
struct PipelineStage {
  int32 index = 0;

  LAZYROPE_DEVICE int32 next() const { return index + 1 == kStages ? 0 : index + 1; }
  LAZYROPE_DEVICE void advance() { index = next(); }
};

}  // namespace lazyrope
