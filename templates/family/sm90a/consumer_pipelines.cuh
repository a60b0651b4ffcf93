// The consumer side of all pipelines that a consumer warp uses for a work tile's blocks: windows of
// the block table, rotated queries, keys and values.
//
// The class also clears the values of slots outside the segment. These slots may contain anything,
// and a weight of 0 would not hide a NaN (0 x NaN).
//
// Role: every consumer warp has one object. Calls are in the order of the blocks.
// clear_partial_runs() synchronizes all consumers by named barrier 2, so all of them call it for
// the same blocks.
#pragma once

#include "family/sm90a/rotated_queries.cuh"
#include "family/sm90a/window_consumer.cuh"
#include "ops/mask_scores.cuh"

namespace lazyrope {

// The valid slots of a block, in one register.
struct ValidSlots {
  uint16 begin;
  uint16 end;

  LAZYROPE_DEVICE explicit ValidSlots(const BlockInfo& info)
      : begin(static_cast<uint16>(info.begin)), end(static_cast<uint16>(info.end)) {}
  LAZYROPE_DEVICE bool has_partial_runs() const { return ((begin | end) % kRunSlots) != 0; }
};

// Returns true if a row at some position of `queries` does not see all kKeys keys of the block.
template <class Mask, int kKeys>
LAZYROPE_DEVICE bool hides_keys(PositionRange queries, const BlockInfo& info) {
  return info.begin > 0 || info.end < kKeys ||
         !all_visible<Mask>(queries, info.position, info.position + kKeys - 1);
}

// `Queries` is one of the classes in family/sm90a/rotated_queries.cuh.
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

  // Returns the number of the first block of the work tile in `stage`.
  LAZYROPE_DEVICE int32 begin(int32 stage) {
    queries_.begin(stage);
    return windows_.begin(stage);
  }

  // Goes on from block - 1 to `block`.
  LAZYROPE_DEVICE void advance_to(int32 block) {
    windows_.finish_block(block - 1);
    windows_.enter_block(block);
  }
  // Does the same for a consumer that has waited for the block's keys. The copier has read the
  // window to copy these, so the window is full.
  LAZYROPE_DEVICE void advance_to_ready(int32 block) {
    windows_.finish_block(block - 1);
    windows_.enter_ready_block(block);
  }
  // These do the same in two steps.
  LAZYROPE_DEVICE void enter_ready(int32 block) { windows_.enter_ready_block(block); }
  LAZYROPE_DEVICE void finish(int32 block) const { windows_.finish_block(block); }
  // Waits until the block table has the block after the present one.
  LAZYROPE_DEVICE void await_window_of(int32 next_block) const { windows_.await_block(next_block); }
  // Finds out whether another document follows the block that `info` describes. If so,
  // next_document() goes on to the document. Call this after products with previous keys have
  // completed.
  LAZYROPE_DEVICE void detect_document_change(int32 block, int32 last, const BlockInfo& info) {
    changes_document_ = block != last && info.ends_segment<Memory::Table::kMaxSlots>();
  }
  LAZYROPE_DEVICE bool changes_document() const { return changes_document_; }
  LAZYROPE_DEVICE void next_document() {
    if (changes_document_) queries_.next_document();
  }
  // Does the same without a preceding detect_document_change().
  LAZYROPE_DEVICE void next_document_after(const BlockInfo& before) {
    if (before.ends_segment<Memory::Table::kMaxSlots>()) queries_.next_document();
  }
  // Consumers that rotate queries go on by these functions: prefetch_queries() loads the saved
  // queries, and rotate_queries() rotates them for the next document. Between the two a warp may
  // rotate its rows back, to compute scores of the present document again.
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

  // Call this after all products of the work tile have completed.
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
  LAZYROPE_DEVICE SharedPtr key_biases() const { return memory_.key_biases(key_stage_.index); }
  LAZYROPE_DEVICE SharedDescriptor key_columns() const {
    return memory_.key_columns(key_stage_.index);
  }
  LAZYROPE_DEVICE SharedDescriptor bias_columns() const {
    return memory_.bias_columns(key_stage_.index);
  }
  LAZYROPE_DEVICE void release_keys() {
    keys_.release(key_stage_.index);
    key_stage_.advance();
  }

  // `slots` are the valid slots of the values' block.
  LAZYROPE_DEVICE SharedPtr wait_for_values(ValidSlots slots) {
    clear_partial_runs(slots);
    return wait_for_values();
  }
  // These do the same in two steps, of which the second has no named barrier. Rows outside the
  // valid slots become zero, unless they were copied as zeros.
  LAZYROPE_DEVICE void clear_partial_runs(ValidSlots slots) {
    clear_partial_runs(slots, value_stage_.index);
  }
  // Clears for the block after the one whose values are being multiplied.
  LAZYROPE_DEVICE void clear_next_partial_runs(ValidSlots slots) {
    clear_partial_runs(slots, value_stage_.next());
  }
  LAZYROPE_DEVICE SharedPtr wait_for_values() {
    values_.wait(value_stage_.index, values_ready_);
    values_ready_ = false;
    return values();
  }
  LAZYROPE_DEVICE SharedPtr values() const { return memory_.values(value_stage_.index); }
  LAZYROPE_DEVICE void release_values() {
    values_.release(value_stage_.index);
    value_stage_.advance();
  }
  // Tests whether the next keys and values are full, before the present block's keys are released.
  LAZYROPE_DEVICE void try_wait_for_both() {
    if (!kTriesEarly) return;
    keys_ready_ = keys_.try_wait(key_stage_.next());
    values_ready_ = values_.try_wait(value_stage_.index);
  }

 private:
  using Team = typename Memory::Consumers;
  using Tile = typename Memory::Values;
  // Short products do not hide the time of a test for full keys and values, so the test comes
  // early. With longer products an additional test costs more time than it saves.
  static constexpr bool kTriesEarly = Memory::kHeadDim <= 96;

  LAZYROPE_DEVICE void clear_partial_runs(ValidSlots slots, int32 stage) {
    if constexpr (Memory::kFloat8) return;  // query rotators have cleared them
    if (Memory::kSkipsOctets ? slots.begin == 0 && slots.end >= Memory::kKeys
                             : !slots.has_partial_runs())
      return;
    values_.await_phase(stage);
    clear_outside(memory_.values(stage), slots);
    Team::sync();
  }
  // Clears the invalid rows of runs that are partly valid, or of all runs if octets are not copied.
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
  // Results of try_wait_for_both(), for the stages that come next.
  bool keys_ready_ = false;
  bool values_ready_ = false;
  bool changes_document_ = false;
};

}  // namespace lazyrope
