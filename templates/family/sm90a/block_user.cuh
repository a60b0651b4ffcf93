// What a warp that computes waits for and gives back as it goes through an item's blocks: the
// window that tells where they lie, turned queries, keys, values.
#pragma once

#include "family/sm90a/turned_queries.cuh"
#include "family/sm90a/window_user.cuh"
#include "ops/mask_scores.cuh"

namespace lazyrope {

// Of a block, in one register.
struct ValidSlots {
  uint16 begin;
  uint16 end;

  LAZYROPE_DEVICE explicit ValidSlots(const BlockInfo& info)
      : begin(static_cast<uint16>(info.begin)), end(static_cast<uint16>(info.end)) {}
  LAZYROPE_DEVICE bool cut_runs() const { return ((begin | end) % kRunSlots) != 0; }
};

// Whether some row at a position of `queries` does not see all of the block's kKeys keys.
template <class Mask, int kKeys>
LAZYROPE_DEVICE bool hides_keys(PositionRange queries, const BlockInfo& info) {
  return info.begin > 0 || info.end < kKeys ||
         !all_visible<Mask>(queries, info.position, info.position + kKeys - 1);
}

// Queries: family/sm90a/turned_queries.cuh.
template <class Memory, class Queries>
class BlockUser {
  using Table = typename Memory::Table;

 public:
  LAZYROPE_DEVICE BlockUser(const AttendParams& params, Memory memory)
      : memory_(memory),
        windows_(memory),
        queries_(params, memory),
        keys_(memory.at + Memory::kKeyBarriers),
        values_(memory.at + Memory::kValueBarriers) {}

  // The number of the first block of the item in `place`.
  LAZYROPE_DEVICE int32 begin(int32 place) {
    queries_.begin(place);
    return windows_.begin(place);
  }

  // From the block before.
  LAZYROPE_DEVICE void go_to(int32 block) {
    windows_.leave(block - 1);
    windows_.reach(block);
  }
  // The same for who has the block's keys: whoever brought these had found them in the window.
  LAZYROPE_DEVICE void go_to_known(int32 block) {
    windows_.leave(block - 1);
    windows_.know(block);
  }
  // Looks whether another document lies behind a block, of which `info` tells; goes on to that. The
  // products with keys before have been waited for.
  LAZYROPE_DEVICE void look_ahead(int32 block, int32 last, const BlockInfo& info) {
    changes_document_ = block != last && info.ends_segment<Memory::kKeys>();
  }
  LAZYROPE_DEVICE bool changes_document() const { return changes_document_; }
  LAZYROPE_DEVICE void go_on() {
    if (changes_document_) queries_.go_on();
  }
  // The same for who has not looked ahead.
  LAZYROPE_DEVICE void go_on_behind(const BlockInfo& before) {
    if (before.ends_segment<Memory::kKeys>()) queries_.go_on();
  }
  // The same for consumers who turn queries: what these are turned from is asked for, then turned.
  // Between the two a warp may turn its rows back, for scores with the present document.
  LAZYROPE_DEVICE void ask_for_queries() {
    if (changes_document_) queries_.ask();
  }
  LAZYROPE_DEVICE void turn_queries() { queries_.turn(); }
  LAZYROPE_DEVICE void turn_queries_back() const {
    if (changes_document_) queries_.turn_back();
  }
  LAZYROPE_DEVICE void restore_queries() const {
    if (changes_document_) queries_.restore();
  }

  // All of the item's products have been waited for.
  LAZYROPE_DEVICE void leave(int32 last_block) {
    queries_.leave();
    windows_.leave_last(last_block);
  }

  LAZYROPE_DEVICE SharedPtr queries() const { return queries_.tile(); }
  LAZYROPE_DEVICE SharedDescriptor query_columns(int32 bytes) const {
    return queries_.columns(bytes);
  }

  LAZYROPE_DEVICE void await_keys() {
    keys_.wait(key_.at, has_keys_);
    has_keys_ = false;
  }
  LAZYROPE_DEVICE SharedPtr keys() const { return memory_.keys(key_.at); }
  LAZYROPE_DEVICE SharedDescriptor key_columns() const { return memory_.key_columns(key_.at); }
  LAZYROPE_DEVICE void pass_keys() {
    keys_.pass(key_.at);
    key_.advance();
  }

  // `slots`: the block's own.
  LAZYROPE_DEVICE SharedPtr full_values(ValidSlots slots) {
    clear_cut_runs(slots);
    return full_values();
  }
  // The same in two steps, of which the second has no barrier. Rows outside of the block become
  // zero unless they were brought as that: a weight of 0 would not hide what they hold (0 x NaN).
  LAZYROPE_DEVICE void clear_cut_runs(ValidSlots slots) { clear_cut_runs(slots, value_.at); }
  // Of the block behind that whose values are multiplied.
  LAZYROPE_DEVICE void clear_next_cut_runs(ValidSlots slots) {
    clear_cut_runs(slots, value_.next());
  }
  LAZYROPE_DEVICE SharedPtr full_values() {
    values_.wait(value_.at, has_values_);
    has_values_ = false;
    return memory_.values(value_.at);
  }
  LAZYROPE_DEVICE void pass_values() {
    values_.pass(value_.at);
    value_.advance();
  }
  // While keys are held: those asked for are the next.
  LAZYROPE_DEVICE void look_for_both() {
    if (!kAsksEarly) return;
    has_keys_ = keys_.is_given(key_.next());
    has_values_ = values_.is_given(value_.at);
  }

 private:
  using Team = typename Memory::Consumers;
  using Tile = typename Memory::Tile;
  // Whether keys and values are there. Short products do not hide how long that takes to tell; of
  // longer ones, asking twice costs more than it saves.
  static constexpr bool kAsksEarly = Memory::kHeadDim <= 96;

  LAZYROPE_DEVICE void clear_cut_runs(ValidSlots slots, int32 place) {
    if (Memory::kLeavesOut ? slots.begin == 0 && slots.end >= Memory::kKeys : !slots.cut_runs())
      return;
    values_.look(place);
    clear_outside(memory_.values(place), slots);
    Team::sync();
  }
  // Of the runs that lie partly outside, or, where octets are not brought, of all.
  LAZYROPE_DEVICE static void clear_outside(SharedPtr values, ValidSlots slots) {
    constexpr int32 kUnit = Memory::kLeavesOut ? Memory::kKeys : kRunSlots;
    const int32 before = slots.begin % kUnit;
    const int32 end = Memory::kLeavesOut ? smaller(int32{slots.end}, Memory::kKeys) : slots.end;
    const int32 behind = ceil_div(end, kUnit) * kUnit - end;
#pragma unroll 1
    for (int32 i = Team::rank(); i < (before + behind) * Tile::kChunks; i += Team::size()) {
      const int32 row = i / Tile::kChunks;
      const int32 first = row < before ? slots.begin - before : end - before;
      st_shared(Tile::chunk(values, first + row, i % Tile::kChunks), Chunk{});
    }
    fence_proxy_async();
  }

  Memory memory_;
  WindowUser<Memory> windows_;
  Queries queries_;
  UseSide keys_;
  UseSide values_;
  RingPlace<Memory::kStages> key_;
  RingPlace<Memory::kStages> value_;
  // Of what comes next, as far as it has been asked for.
  bool has_keys_ = false;
  bool has_values_ = false;
  bool changes_document_ = false;
};

}  // namespace lazyrope
