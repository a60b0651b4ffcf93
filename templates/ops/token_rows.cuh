// Moving tokens, one row (a token and KV head) at a time: keys turned or copied, values copied.
// Eight bytes a thread at a time, or four where the pairing divides rows so; grid-stride over
// (token, KV head, task). A task is a unit that the rotation pairs or, behind these, a run of
// columns that it leaves alone, so that neighbouring threads read and write neighbouring addresses.
#pragma once

#include "abi/append.h"
#include "ops/rotate.cuh"

namespace lazyrope {

struct TokenRow {
  const void* key;
  const void* value;
  void* key_to;
  void* value_to;
  int64 turn;  // tokens by which the key is turned
};

// Offset, in either tensor of the pool, of a slot's head.
LAZYROPE_DEVICE uint64 pool_offset(const KvPool& pool, const AppendRecord& record, int32 head) {
  return static_cast<uint64>(static_cast<uint32>(record.page)) * pool.page_stride +
         static_cast<uint32>(record.slot) * pool.slot_stride +
         static_cast<uint32>(head) * pool.head_stride;
}

// Spec says how keys are turned: Element, Pairing, kHeadDim, kRotates, kFactor, frequencies().
template <class Spec>
struct TokenMove {
  using Pairing = typename Spec::Pairing;
  static constexpr int kUnits = Spec::kRotates ? Pairing::kUnits : 0;
  using Run = typename UnitRotation<Pairing>::Run;
  static constexpr int kTasks = Spec::kHeadDim / Pairing::kPairs - kUnits;  // a unit is two runs

  LAZYROPE_DEVICE static Run load(const void* row, int32 run) {
    return ld_global_nc(static_cast<const Run*>(row) + run);
  }
  LAZYROPE_DEVICE static void store(void* row, int32 run, Run value) {
    st_global(static_cast<Run*>(row) + run, value);
  }

  // Loads come first: their latencies overlap.
  LAZYROPE_DEVICE static void move_unit(const TokenRow& row, int32 unit) {
    const int32 run_a = Pairing::run_a(unit);
    const int32 run_b = Pairing::run_b(unit);
    Run key_a = load(row.key, run_a);
    Run key_b = load(row.key, run_b);
    const Run value_a = load(row.value, run_a);
    const Run value_b = load(row.value, run_b);
    UnitRotation<Pairing> rotation;
    rotation.set(row.turn, Spec::frequencies() + unit * Pairing::kPairs, Spec::kFactor);
    rotation.template apply<typename Spec::Element>(key_a, key_b);
    store(row.key_to, run_a, key_a);
    store(row.key_to, run_b, key_b);
    store(row.value_to, run_a, value_a);
    store(row.value_to, run_b, value_b);
  }

  LAZYROPE_DEVICE static void move_run(const TokenRow& row, int32 run) {
    const Run key = load(row.key, run);
    const Run value = load(row.value, run);
    store(row.key_to, run, key);
    store(row.value_to, run, value);
  }

  LAZYROPE_DEVICE static void run(const TokenRow& row, int32 task) {
    if constexpr (kUnits > 0) {
      if (task < kUnits) return move_unit(row, task);
    }
    move_run(row, task + kUnits);
  }

  // Calls move(token, head, task) for this thread's share.
  template <class Move>
  LAZYROPE_DEVICE static void for_each(int32 num_tokens, int32 num_heads, const Move& move) {
    const int64 num_tasks = static_cast<int64>(num_tokens) * num_heads * kTasks;
    const int64 stride = static_cast<int64>(grid_blocks()) * block_threads();
    for (int64 i = static_cast<int64>(block_index()) * block_threads() + thread_index();
         i < num_tasks; i += stride)
      move(i / kTasks / num_heads, static_cast<int32>(i / kTasks % num_heads),
           static_cast<int32>(i % kTasks));
  }
};

}  // namespace lazyrope
