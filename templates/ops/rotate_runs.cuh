// Rotation of keys of a pool into a step's scratch. A row is one KV head of a slot, and a task is a
// part of its columns: a unit of the pairing or, after these, a run of columns that is not rotated.
// Where the pairing allows it, a unit consists of whole chunks of 16 bytes (ops/chunk_pairing.cuh).
//
// A thread has the same task of kHeads KV heads of a slot, because these share the angles of the
// rotation. Their loads come first, so that their latencies overlap.
#pragma once

#include "abi/rotation.h"
#include "ops/chunk_pairing.cuh"
#include "ops/pool_offset.cuh"
#include "ops/rotate.cuh"

namespace lazyrope {

// The slot of the pool that is copied to a slot of the scratch.
struct RotatedSlot {
  int32 page;
  int32 slot;
  int32 position;  // the key is rotated by it
  bool exists;
};

// Raw keys, in runs that plan_rotation found: each is rotated by its token's index.
struct RawRuns {
  LAZYROPE_DEVICE static RotatedSlot find(const RotateKeysParams& params, int32 run, int32 slot) {
    const RotationRun of_run = ld_global_nc(params.runs + run);
    return {of_run.page, of_run.slot + slot, of_run.index + slot,
            slot >= of_run.begin && slot < of_run.end};
  }
};

// Local keys, in the slots that plan_packing found: all keys of a document are rotated by its base.
struct PackedSlots {
  LAZYROPE_DEVICE static RotatedSlot find(const RotateKeysParams& params, int32 run, int32 slot) {
    const PackedSlot of_slot = ld_global_nc(params.slots + run * kRunSlots + slot);
    return {of_slot.page, of_slot.slot, of_slot.base, of_slot.is_used != 0};
  }
};

// Spec has Element, Pairing, kHeadDim, kFactor and frequencies() for the rotation of keys. Its
// Store (ops/store) tells how the pool's elements become those of the scratch, which have 16 bits
// and the same scales. Source is RawRuns or PackedSlots.
template <class Spec, class Source>
class RunRotator {
  using Pairing = typename WidestPairing<typename Spec::Pairing>::Type;
  using Run = typename UnitRotation<Pairing>::Run;
  using Stored = typename Spec::Store::template Loaded<Pairing::kPairs>;
  static constexpr int32 kHeads = 2;
  static constexpr int32 kUnits = Pairing::kUnits;
  // A row has kHeadDim / kPairs runs of columns, and a unit is two of them.
  static constexpr int32 kTasks = Spec::kHeadDim / Pairing::kPairs - kUnits;
  static constexpr int32 kSlotTasks = kRunSlots * kTasks;

 public:
  LAZYROPE_DEVICE explicit RunRotator(const RotateKeysParams& params) : params_(params) {}

  // All threads of the grid call this.
  LAZYROPE_DEVICE void run() const {
    const auto groups = static_cast<uint32>(ceil_div(params_.num_kv_heads, kHeads));
    const auto num_runs = static_cast<uint32>(ld_global_nc(&params_.header->num_runs));
    const uint64 num_tasks = uint64{groups} * num_runs * kSlotTasks;
    const auto threads = static_cast<uint32>(block_threads());
    const uint64 stride = uint64{threads} * static_cast<uint32>(grid_blocks());
    const auto block = static_cast<uint32>(block_index());
#pragma unroll 1
    for (uint64 i = uint64{threads} * block + static_cast<uint32>(thread_index()); i < num_tasks;
         i += stride) {
      const auto group_of_run = static_cast<uint32>(i / kSlotTasks);
      const auto slot_task = static_cast<int32>(i % kSlotTasks);
      rotate(static_cast<int32>(group_of_run / groups),
             static_cast<int32>(group_of_run % groups) * kHeads, slot_task / kTasks,
             slot_task % kTasks);
    }
  }

 private:
  // The rows of one slot, from the thread's first KV head on.
  struct Rows {
    uint64 from;  // offset in the pool's tensors
    uint64 to;    // offset in the scratch's
    int32 heads;  // KV heads of the thread
  };

  // Performs a task of KV heads `head` to head + kHeads - 1 of a slot of a run.
  LAZYROPE_DEVICE void rotate(int32 run_index, int32 head, int32 slot, int32 task) const {
    const RotatedSlot from = Source::find(params_, run_index, slot);
    if (!from.exists) return;
    const Rows rows = {pool_offset(params_.pool, from.page, from.slot, head),
                       pool_offset(params_.scratch, run_index, slot, head),
                       params_.num_kv_heads - head};
    if constexpr (kUnits > 0) {
      if (kUnits == kTasks || task < kUnits) return rotate_unit(rows, from.position, task);
    }
    copy_run(rows, task + kUnits);
  }

  // Rotates a unit of the keys by a position, and copies the same columns of the values.
  LAZYROPE_DEVICE void rotate_unit(const Rows& rows, int32 position, int32 unit) const {
    const int32 run_a = Pairing::run_a(unit);
    const int32 run_b = Pairing::run_b(unit);
    Run key_a[kHeads];
    Run key_b[kHeads];
    Run value_a[kHeads];
    Run value_b[kHeads];
    load(key_a, params_.pool.keys, rows, run_a);
    load(key_b, params_.pool.keys, rows, run_b);
    load(value_a, params_.pool.values, rows, run_a);
    load(value_b, params_.pool.values, rows, run_b);
    UnitRevolutions<Pairing> revolutions;
    revolutions.load(Spec::frequencies(), unit);
    UnitRotation<Pairing> rotation;
    rotation.set(position, revolutions, Spec::kFactor);
#pragma unroll
    for (int32 i = 0; i < kHeads; ++i)
      rotation.template apply<typename Spec::Element>(key_a[i], key_b[i]);
    store(key_a, params_.scratch.keys, rows, run_a);
    store(key_b, params_.scratch.keys, rows, run_b);
    store(value_a, params_.scratch.values, rows, run_a);
    store(value_b, params_.scratch.values, rows, run_b);
  }

  // Copies a run of columns that is not rotated.
  LAZYROPE_DEVICE void copy_run(const Rows& rows, int32 run) const {
    Run key[kHeads];
    Run value[kHeads];
    load(key, params_.pool.keys, rows, run);
    load(value, params_.pool.values, rows, run);
    store(key, params_.scratch.keys, rows, run);
    store(value, params_.scratch.values, rows, run);
  }

  // Loads one run of columns of each of the thread's KV heads, and widens it if it has 8 bits.
  LAZYROPE_DEVICE void load(Run (&runs)[kHeads], const void* tensor, const Rows& rows,
                            int32 run) const {
#pragma unroll
    for (int32 i = 0; i < kHeads; ++i) {
      const auto* row = static_cast<const uint8*>(tensor) + rows.from +
                        static_cast<uint32>(i) * uint64{params_.pool.head_stride};
      runs[i] = {};
      if (i < rows.heads)
        runs[i] = Spec::Store::template elements<Pairing::kPairs>(
            load_stored(reinterpret_cast<const Stored*>(row) + run));
    }
  }
  LAZYROPE_DEVICE static Stored load_stored(const Stored* from) {
    if constexpr (sizeof(Stored) >= 4)
      return ld_global_nc(from);
    else
      return ld_global(from);
  }
  LAZYROPE_DEVICE void store(const Run (&runs)[kHeads], void* tensor, const Rows& rows,
                             int32 run) const {
#pragma unroll
    for (int32 i = 0; i < kHeads; ++i) {
      auto* row = static_cast<uint8*>(tensor) + rows.to +
                  static_cast<uint32>(i) * uint64{params_.scratch.head_stride};
      if (i < rows.heads) st_global(reinterpret_cast<Run*>(row) + run, runs[i]);
    }
  }

  const RotateKeysParams& params_;
};

}  // namespace lazyrope
