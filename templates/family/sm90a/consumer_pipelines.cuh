// What a warp that computes waits for and gives back as it goes through a work tile's blocks: the
// window that tells where they lie, turned queries, keys, values.
#pragma once

#include "family/sm90a/rotated_queries.cuh"
#include "family/sm90a/window_consumer.cuh"
#include "ops/mask_scores.cuh"

namespace lazyrope {

// Of a block, in one register.
struct ValidSlots {
  uint16 begin;
  uint16 end;

  LAZYROPE_DEVICE explicit ValidSlots(const BlockInfo& info)
      : begin(static_cast<uint16>(info.begin)), end(static_cast<uint16>(info.end)) {}
  LAZYROPE_DEVICE bool has_partial_runs() const { return ((begin | end) % kRunSlots) != 0; }
};

// Whether some row at a position of `queries` does not see all of the block's kKeys keys.
template <class Mask, int kKeys>
LAZYROPE_DEVICE bool hides_keys(PositionRange queries, const BlockInfo& info) {
  return info.begin > 0 || info.end < kKeys ||
         !all_visible<Mask>(queries, info.position, info.position + kKeys - 1);
}

// Queries: family/sm90a/rotated_queries.cuh.
template <class Memory, class Queries>
class ConsumerPipelines {
  using Table = typename Memory::Table;

 public:
  LAZYROPE_DEVICE ConsumerPipelines(const AttendParams& params, Memory memory)
      : memory_(memory),
        windows_(memory),
        queries_(params, memory),
        keys_(memory.at + Memory::kKeyBarriers),
        values_(memory.at + Memory::kValueBarriers) {}

  // The number of the first block of the work tile in `stage`.
  LAZYROPE_DEVICE int32 begin(int32 stage) {
    queries_.begin(stage);
    return windows_.begin(stage);
  }

  // From the block before.
  LAZYROPE_DEVICE void advance_to(int32 block) {
    windows_.finish_block(block - 1);
    windows_.enter_block(block);
  }
  // The same for who has the block's keys: whoever brought these had found them in the window.
  LAZYROPE_DEVICE void advance_to_ready(int32 block) {
    windows_.finish_block(block - 1);
    windows_.enter_ready_block(block);
  }
  // Looks whether another document lies behind a block, of which `info` tells; goes on to that. The
  // products with keys before have been waited for.
  LAZYROPE_DEVICE void detect_document_change(int32 block, int32 last, const BlockInfo& info) {
    changes_document_ = block != last && info.ends_segment<Memory::kKeys>();
  }
  LAZYROPE_DEVICE bool changes_document() const { return changes_document_; }
  LAZYROPE_DEVICE void next_document() {
    if (changes_document_) queries_.next_document();
  }
  // The same for who has not looked ahead.
  LAZYROPE_DEVICE void next_document_after(const BlockInfo& before) {
    if (before.ends_segment<Memory::kKeys>()) queries_.next_document();
  }
  // The same for consumers who turn queries: what these are turned from is asked for, then turned.
  // Between the two a warp may turn its rows back, for scores with the present document.
  LAZYROPE_DEVICE void prefetch_queries() {
    if (changes_document_) queries_.prefetch();
  }
  LAZYROPE_DEVICE void rotate_queries() { queries_.rotate(); }
  LAZYROPE_DEVICE void rotate_queries_back() const {
    if (changes_document_) queries_.rotate_back();
  }
  LAZYROPE_DEVICE void restore_queries() const {
    if (changes_document_) queries_.restore();
  }

  // All of the work tile's products have been waited for.
  LAZYROPE_DEVICE void finish_work_tile(int32 last_block) {
    queries_.finish();
    windows_.finish_last_block(last_block);
  }

  LAZYROPE_DEVICE SharedPtr queries() const { return queries_.tile(); }
  LAZYROPE_DEVICE SharedDescriptor query_columns(int32 bytes) const {
    return queries_.columns(bytes);
  }

  LAZYROPE_DEVICE void wait_for_keys() {
    keys_.wait(key_stage_.index, keys_ready_);
    keys_ready_ = false;
  }
  LAZYROPE_DEVICE SharedPtr keys() const { return memory_.keys(key_stage_.index); }
  LAZYROPE_DEVICE SharedDescriptor key_columns() const {
    return memory_.key_columns(key_stage_.index);
  }
  LAZYROPE_DEVICE void release_keys() {
    keys_.release(key_stage_.index);
    key_stage_.advance();
  }

  // `slots`: the block's own.
  LAZYROPE_DEVICE SharedPtr wait_for_values(ValidSlots slots) {
    clear_partial_runs(slots);
    return wait_for_values();
  }
  // The same in two steps, of which the second has no barrier. Rows outside of the block become
  // zero unless they were brought as that: a weight of 0 would not hide what they hold (0 x NaN).
  LAZYROPE_DEVICE void clear_partial_runs(ValidSlots slots) {
    clear_partial_runs(slots, value_stage_.index);
  }
  // Of the block behind that whose values are multiplied.
  LAZYROPE_DEVICE void clear_next_partial_runs(ValidSlots slots) {
    clear_partial_runs(slots, value_stage_.next());
  }
  LAZYROPE_DEVICE SharedPtr wait_for_values() {
    values_.wait(value_stage_.index, values_ready_);
    values_ready_ = false;
    return memory_.values(value_stage_.index);
  }
  LAZYROPE_DEVICE void release_values() {
    values_.release(value_stage_.index);
    value_stage_.advance();
  }
  // While keys are held: those asked for are the next.
  LAZYROPE_DEVICE void try_wait_for_both() {
    if (!kTriesEarly) return;
    keys_ready_ = keys_.try_wait(key_stage_.next());
    values_ready_ = values_.try_wait(value_stage_.index);
  }

 private:
  using Team = typename Memory::Consumers;
  using Tile = typename Memory::Tile;
  // Whether keys and values are there. Short products do not hide how long that takes to tell; of
  // longer ones, asking twice costs more than it saves.
  static constexpr bool kTriesEarly = Memory::kHeadDim <= 96;

  LAZYROPE_DEVICE void clear_partial_runs(ValidSlots slots, int32 stage) {
    if (Memory::kSkipsOctets ? slots.begin == 0 && slots.end >= Memory::kKeys
                             : !slots.has_partial_runs())
      return;
    values_.await_phase(stage);
    clear_outside(memory_.values(stage), slots);
    Team::sync();
  }
  // Of the runs that lie partly outside, or, where octets are not brought, of all.
  LAZYROPE_DEVICE static void clear_outside(SharedPtr values, ValidSlots slots) {
    constexpr int32 kGranularity = Memory::kSkipsOctets ? Memory::kKeys : kRunSlots;
    const int32 before = slots.begin % kGranularity;
    const int32 end = Memory::kSkipsOctets ? smaller(int32{slots.end}, Memory::kKeys) : slots.end;
    const int32 after = ceil_div(end, kGranularity) * kGranularity - end;
#pragma unroll 1
    for (int32 i = Team::rank(); i < (before + after) * Tile::kChunks; i += Team::size()) {
      const int32 row = i / Tile::kChunks;
      const int32 first = row < before ? slots.begin - before : end - before;
      st_shared(Tile::chunk(values, first + row, i % Tile::kChunks), Chunk{});
    }
    fence_proxy_async();
  }

  Memory memory_;
  WindowConsumer<Memory> windows_;
  Queries queries_;
  PipelineConsumer keys_;
  PipelineConsumer values_;
  PipelineStage<Memory::kStages> key_stage_;
  PipelineStage<Memory::kStages> value_stage_;
  // Of what comes next, as far as it has been asked for.
  bool keys_ready_ = false;
  bool values_ready_ = false;
  bool changes_document_ = false;
};

}  // namespace lazyrope
