// The rotation producer warps compute the rotation from a work tile's first document to each later
// one, while consumers compute the present document. If consumers rotate, these warps also produce
// the first document's rotation, by a zero angle. A rotation serves many rows together
// (ops/rotate_tile.cuh).
//
// Reads: the base of each document, in the block table, and the frequencies of RoPE.
// Writes: kRotationStages stages of rotation_bytes(head_dim): cosines and sines of all pairs,
// packed in pairs of elements, and whether the rotation exists.
//
// The producer is one warp for query rotators, or two warps for consumers that rotate (warps
// kFirstRotationWarp and following). It consumes the work tile and window pipelines and produces
// the rotation pipeline. If kSignalsRotationEnd, a stage that says "no rotation" follows a work
// tile's last document, because the rotators do not visit blocks.
#pragma once

#include "family/sm90a/window_consumer.cuh"
#include "ops/rotate_tile.cuh"

namespace lazyrope {

template <class Spec, class Memory>
class RotationProducer {
 public:
  LAZYROPE_DEVICE RotationProducer(const AttendParams& params, Memory memory)
      : params_(params),
        memory_(memory),
        windows_(memory),
        rotations_(memory.at + Memory::kRotationBarriers) {}

  LAZYROPE_DEVICE void run() {
    for_each_work_tile(memory_, [&](WorkTilePtr work_tile, int32 stage) {
      const int32 num_blocks = work_tile.extent().num_blocks;
      const int32 first = work_tile.start().base;
      if (num_blocks == 0) return;
      windows_.for_each_document(memory_.table(params_.step, work_tile), num_blocks, stage,
                                 [&](int32 base, int32 document) {
                                   if (warp_uniform(document >= Memory::kFirstRotation))
                                     produce_rotation(static_cast<int64>(first) - base);
                                 });
      if (Memory::kSignalsRotationEnd && !has_one_document<Memory>(work_tile))
        produce(false, [](SharedPtr) {});
    });
  }

 private:
  LAZYROPE_DEVICE void produce_rotation(int64 positions) {
    produce(true, [positions](SharedPtr rotation) {
      write_shared_rotation<Spec, typename Memory::RotationWarps>(rotation, Spec::frequencies(),
                                                                  positions);
    });
  }
  template <class Fill>
  LAZYROPE_DEVICE void produce(bool exists, const Fill& fill) {
    rotations_.acquire(rotation_stage_.index);
    fill(memory_.rotation(rotation_stage_.index));
    if (Memory::kSignalsRotationEnd && lane_index() == 0)
      st_shared(memory_.rotation_exists(rotation_stage_.index), static_cast<int32>(exists));
    rotations_.commit(rotation_stage_.index);
    rotation_stage_.advance();
  }

  const AttendParams& params_;
  Memory memory_;
  WindowConsumer<Memory> windows_;
  PipelineProducer rotations_;
  PipelineStage<Memory::kRotationStages> rotation_stage_;
};

}  // namespace lazyrope
