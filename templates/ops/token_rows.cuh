// Writes tokens to the pool. A row is one KV head of a token: its key is rotated by rotation_tokens
// or copied, and its value is copied.
//
// The grid strides over (token, KV head, task). A task is a unit of the pairing or, after these, a
// run of columns that is not rotated, so neighbouring threads access neighbouring addresses. A
// thread loads 8 bytes at a time, or 4 if the pairing has shorter runs; from a pool of 8 bits it
// loads half as many.
#pragma once

#include "abi/append.h"
#include "ops/pool_offset.cuh"
#include "ops/rotate.cuh"

namespace lazyrope {

struct TokenRow {
  const void* key;
  const void* value;
  void* key_to;
  void* value_to;
  int64 rotation_tokens;  // the key is rotated by so many positions
};

// The factors by which a store multiplies keys and values.
struct InverseScales {
  float key = 1.0f;
  float value = 1.0f;
};

LAZYROPE_DEVICE uint64 pool_offset(const KvPool& pool, const AppendRecord& record, int32 head) {
  return pool_offset(pool, record.page, record.slot, head);
}

// Spec has Element, Pairing, kHeadDim, kRotates, kFactor and frequencies() for the rotation of
// keys, and Store (ops/store).
template <class Spec>
struct TokenMove {
  using Pairing = typename Spec::Pairing;
  static constexpr int kUnits = Spec::kRotates ? Pairing::kUnits : 0;
  static constexpr int kColumns = Pairing::kPairs;  // columns of a run
  using Store = typename Spec::Store;
  using Run = typename Store::template Loaded<kColumns>;
  using StoredRun = typename Store::template Run<kColumns>;
  static constexpr int kTasks = Spec::kHeadDim / Pairing::kPairs - kUnits;  // a unit is two runs

  LAZYROPE_DEVICE static Run load(const void* row, int32 run) {
    const Run* const at = static_cast<const Run*>(row) + run;
    if constexpr (sizeof(Run) < 4)
      return ld_global(at);  // ld.global.nc has no such width
    else
      return ld_global_nc(at);
  }
  LAZYROPE_DEVICE static void store(void* row, int32 run, StoredRun value) {
    st_global(static_cast<StoredRun*>(row) + run, value);
  }
  LAZYROPE_DEVICE static void store_unrotated(void* row, int32 run, Run value, float inverse) {
    store(row, run, Store::template unrotated<kColumns>(value, inverse));
  }

  // Rotates one unit of a key and copies the same columns of the value. All loads come first, so
  // that their latencies overlap.
  LAZYROPE_DEVICE static void move_unit(const TokenRow& row, int32 unit, InverseScales inverse) {
    const int32 run_a = Pairing::run_a(unit);
    const int32 run_b = Pairing::run_b(unit);
    const Run key_a = load(row.key, run_a);
    const Run key_b = load(row.key, run_b);
    const Run value_a = load(row.value, run_a);
    const Run value_b = load(row.value, run_b);
    UnitRevolutions<Pairing> revolutions;
    revolutions.load(Spec::frequencies(), unit);
    UnitRotation<Pairing> rotation;
    rotation.set(row.rotation_tokens, revolutions, Spec::kFactor);
    float rotated[2 * kColumns];
    rotation.template rotate<typename Spec::Element>(rotated,
                                                     Store::template elements<kColumns>(key_a),
                                                     Store::template elements<kColumns>(key_b));
    store(row.key_to, run_a, Store::template rotated<kColumns>(rotated, inverse.key));
    store(row.key_to, run_b, Store::template rotated<kColumns>(rotated + kColumns, inverse.key));
    store_unrotated(row.value_to, run_a, value_a, inverse.value);
    store_unrotated(row.value_to, run_b, value_b, inverse.value);
  }

  // Copies a run of columns that is not rotated.
  LAZYROPE_DEVICE static void move_run(const TokenRow& row, int32 run, InverseScales inverse) {
    const Run key = load(row.key, run);
    const Run value = load(row.value, run);
    store_unrotated(row.key_to, run, key, inverse.key);
    store_unrotated(row.value_to, run, value, inverse.value);
  }

  LAZYROPE_DEVICE static void run(const TokenRow& row, int32 task, InverseScales inverse = {}) {
    if constexpr (kUnits > 0) {
      if (kUnits == kTasks || task < kUnits) return move_unit(row, task, inverse);
    }
    move_run(row, task + kUnits, inverse);
  }

  // Calls move(token, head, task) for each task of this thread.
  template <class Move>
  LAZYROPE_DEVICE static void for_each(int32 num_tokens, int32 num_heads, const Move& move) {
    const auto heads = static_cast<uint32>(num_heads);
    const auto threads = static_cast<uint32>(block_threads());
    const uint64 num_tasks = uint64{heads} * static_cast<uint32>(num_tokens) * kTasks;
    const uint64 stride = uint64{threads} * static_cast<uint32>(grid_blocks());
    const auto block = static_cast<uint32>(block_index());
    for (uint64 i = uint64{threads} * block + static_cast<uint32>(thread_index()); i < num_tasks;
         i += stride)
      move(static_cast<int64>(i / kTasks / heads), static_cast<int32>(i / kTasks % heads),
           static_cast<int32>(i % kTasks));
  }
};

}  // namespace lazyrope
