// Moving tokens, one row (a token and KV head) at a time: keys turned or copied, values copied.
// Eight bytes a thread at a time; grid-stride over (token, KV head, task). A task is a unit that
// the rotation pairs or, behind these, a quad it leaves alone, so that neighbouring threads read
// and write neighbouring addresses.
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

LAZYROPE_DEVICE Word2 load_quad(const void* row, int32 quad) {
  return ld_global_nc(static_cast<const Word2*>(row) + quad);
}

LAZYROPE_DEVICE void store_quad(void* row, int32 quad, Word2 value) {
  st_global(static_cast<Word2*>(row) + quad, value);
}

// Spec says how keys are turned: Element, Pairing, kHeadDim, kRotates, kFactor, frequencies().
template <class Spec>
struct TokenMove {
  using Pairing = typename Spec::Pairing;
  static constexpr int kUnits = Spec::kRotates ? Pairing::kUnits : 0;
  static constexpr int kTasks = Spec::kHeadDim / 4 - kUnits;  // of a row; a unit is two quads

  // Loads come first: their latencies overlap.
  LAZYROPE_DEVICE static void move_unit(const TokenRow& row, int32 unit) {
    const int32 quad_a = Pairing::quad_a(unit);
    const int32 quad_b = Pairing::quad_b(unit);
    Word2 key_a = load_quad(row.key, quad_a);
    Word2 key_b = load_quad(row.key, quad_b);
    const Word2 value_a = load_quad(row.value, quad_a);
    const Word2 value_b = load_quad(row.value, quad_b);
    UnitRotation rotation;
    rotation.set(row.turn, Spec::frequencies() + unit * 4, Spec::kFactor);
    rotation.apply<typename Spec::Element, Pairing>(key_a, key_b);
    store_quad(row.key_to, quad_a, key_a);
    store_quad(row.key_to, quad_b, key_b);
    store_quad(row.value_to, quad_a, value_a);
    store_quad(row.value_to, quad_b, value_b);
  }

  LAZYROPE_DEVICE static void move_quad(const TokenRow& row, int32 quad) {
    const Word2 key = load_quad(row.key, quad);
    const Word2 value = load_quad(row.value, quad);
    store_quad(row.key_to, quad, key);
    store_quad(row.value_to, quad, value);
  }

  LAZYROPE_DEVICE static void run(const TokenRow& row, int32 task) {
    if constexpr (kUnits > 0) {
      if (task < kUnits) return move_unit(row, task);
    }
    move_quad(row, task + kUnits);
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
