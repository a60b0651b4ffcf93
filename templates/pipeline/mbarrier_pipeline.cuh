// A pipeline of shared-memory stages that producers fill and consumers read, as in CUTLASS. Each
// stage has two mbarriers, 16 bytes in all: "full" at offset 0, "empty" at offset 8.
//
// A producer calls acquire(), which waits for "empty", fills the stage, and calls commit(), which
// arrives at "full". A consumer calls wait(), which waits for "full", reads the stage, and calls
// release(), which arrives at "empty".
//
// | barrier | who arrives, how many                          | who waits | what it protects |
// |---------|------------------------------------------------|-----------|----------------------------|
// | full    | `producers` warps, 1 each, and bytes of copies | consumers | data that is being
// written | | empty   | `consumers` warps, 1 each                      | producers | data that is
// being read    |
//
// init() gets the two counts. signal() makes one arrival for a warp.
#pragma once

#include "isa/mbarrier.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

template <int kStageCount>
struct Pipeline {
  static constexpr int kStages = kStageCount;
  static constexpr int kBytes = kStages * 16;

  // One thread calls this. The counts are the arrivals that complete a phase: `producers` at
  // "full", and `consumers` at "empty".
  LAZYROPE_DEVICE static void init(SharedPtr memory, uint32 producers, uint32 consumers) {
#pragma unroll
    for (int32 i = 0; i < 2 * kStages; ++i)
      mbarrier_init(memory + i * 8, i % 2 == 0 ? producers : consumers);
    fence_mbarrier_init_release_cluster();
  }
};

// This is one thread's view of a pipeline, from the producer's or the consumer's side. It keeps the
// parity of each stage's phase, so a thread that waits must take part in every phase of the stage.
// A thread that never waits need not count phases.
template <bool kProduces>
class PipelineSide {
 public:
  LAZYROPE_DEVICE explicit PipelineSide(SharedPtr memory)
      : memory_(memory), phases_(kProduces ? ~0u : 0u) {}

  // Replaces acquire() or wait() where something else has shown that the phase is complete.
  LAZYROPE_DEVICE void flip_phase(int32 stage) { phases_ ^= 1u << stage; }
  // Waits like acquire() and wait(), but does not advance the phase: the thread will wait for this
  // stage again.
  LAZYROPE_DEVICE void await_phase(int32 stage) const {
    while (!mbarrier_try_wait_parity(wait_barrier(stage), parity(stage))) {
    }
  }
  // Returns true if acquire() or wait() would return at once.
  LAZYROPE_DEVICE bool try_wait(int32 stage) const {
    return mbarrier_test_wait_parity(wait_barrier(stage), parity(stage));
  }

  // The mbarrier at which this side arrives: "full" for producers, "empty" for consumers.
  LAZYROPE_DEVICE SharedPtr signal_barrier(int32 stage) const {
    return memory_ + stage * 16 + (kProduces ? 0 : 8);
  }

  // The mbarrier for which this side waits.
  LAZYROPE_DEVICE SharedPtr wait_barrier(int32 stage) const {
    return memory_ + stage * 16 + (kProduces ? 8 : 0);
  }

 protected:
  LAZYROPE_DEVICE void await_and_flip(int32 stage, bool is_ready) {
    if (!is_ready) await_phase(stage);
    phases_ ^= 1u << stage;
  }
  // One warp calls this, when all its lanes have finished with the stage.
  LAZYROPE_DEVICE void signal(int32 stage) const {
    bar_warp_sync();
    if (elect_sync()) mbarrier_arrive(signal_barrier(stage));
  }

 private:
  LAZYROPE_DEVICE uint32 parity(int32 stage) const { return phases_ >> stage & 1; }

  SharedPtr memory_;
  uint32 phases_;  // one bit for each stage
};

class PipelineProducer : public PipelineSide<true> {
 public:
  using PipelineSide<true>::PipelineSide;

  // Waits until the stage is empty. `is_ready` is the result of try_wait() for this stage.
  LAZYROPE_DEVICE void acquire(int32 stage, bool is_ready = false) {
    await_and_flip(stage, is_ready);
  }
  // One warp calls this, when it has filled the stage.
  LAZYROPE_DEVICE void commit(int32 stage) const { signal(stage); }
};

class PipelineConsumer : public PipelineSide<false> {
 public:
  using PipelineSide<false>::PipelineSide;

  // Waits until the stage is full. `is_ready` is the result of try_wait() for this stage.
  LAZYROPE_DEVICE void wait(int32 stage, bool is_ready = false) { await_and_flip(stage, is_ready); }
  // One warp calls this, when it has finished with the stage.
  LAZYROPE_DEVICE void release(int32 stage) const { signal(stage); }
};

// The index of a thread's present stage in a ring.
template <int kStages>
struct PipelineStage {
  int32 index = 0;

  LAZYROPE_DEVICE int32 next() const { return index + 1 == kStages ? 0 : index + 1; }
  LAZYROPE_DEVICE void advance() { index = next(); }
};

}  // namespace lazyrope
