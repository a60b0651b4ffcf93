// The warps that turn an item's queries for its next segment, while others compute on the present
// one if there is room for both: each row by its own angle, from the originals; or many, from an
// item's second document on, by the angle that lies between documents (ops/turn_together.cuh), from
// those of the first, which have taken the originals' place. Where keys and values are stored in 8
// bits they widen these, too.
#pragma once

#include "family/sm90a/kv_widener.cuh"
#include "family/sm90a/window_user.cuh"
#include "isa/bulk_copy.cuh"
#include "ops/query_rows.cuh"
#include "ops/rotate.cuh"
#include "ops/turn_together.cuh"

namespace lazyrope {

template <class Spec, class Memory>
class QueryTurner {
  using Team = typename Memory::Turners;
  using Tile = typename Memory::QueryTile;
  using Original = typename Memory::Original;
  using Rotation = KeptRotation<Spec>;
  static constexpr int kRows = Memory::kRows;
  static constexpr bool kHasManyRows = Memory::kHasManyRows;
  static constexpr bool kTogether = kHasManyRows && Memory::kQueriesTurn;
  static constexpr int kWarpRows = kRows / Memory::kTurningWarps;
  // Kept rows at a time. With more of 128 columns those who compute are held up for longer.
  static constexpr int kTurnedAtOnce = Memory::kHeadDim < 128 ? 4 : 1;
  using Kept = TogetherTurner<Rotation, RowsOf<Tile>, RowsOf<Original>, kTogether>;

 public:
  LAZYROPE_DEVICE QueryTurner(const AttendParams& params, Memory memory)
      : params_(params),
        memory_(memory),
        windows_(memory),
        turned_(memory.at + Memory::kTurnedBarriers),
        rotations_(memory.at + Memory::kRotationBarriers),
        widener_(memory),
        warp_(warp_uniform(Team::warp())),
        kept_({memory.turned(0), warp_ * kWarpRows}, {memory.original(), warp_ * kWarpRows}) {
    if constexpr (kTogether) bring_frequencies();
  }

  LAZYROPE_DEVICE void run() {
    for_each_item(memory_, [&](ItemPtr item, int32 place) {
      copy(item, place);
      key_scale_ = Memory::key_scale_of(params_, item);
      const int32 num_blocks = item.extent().num_blocks;
      const auto turn = [&](int32 base, int32 document) { turn_for(document, base, item, place); };
      if (num_blocks == 0) return;
      if constexpr (Memory::kMakerTells)
        turn_as_told(item, place);
      else if constexpr (Memory::kWidens)
        turn_and_widen(memory_.table(params_.step, item), num_blocks, place, turn);
      else
        windows_.for_each_document(memory_.table(params_.step, item), num_blocks, place, turn);
    });
  }

 private:
  // Into the L1 cache, before the first keys and values are on their way. They are copied to where
  // turned rows will lie: loads for nothing would be left out, and prefetches end at L2. Of few
  // rows angles_ has them.
  LAZYROPE_DEVICE void bring_frequencies() const {
    constexpr int32 kBytes = Spec::Pairing::kUnits * Spec::Pairing::kPairs * 8;
    constexpr int32 kLaneBytes = 16;
    static_assert(kBytes <= kWarpThreads * kLaneBytes);
    const SharedPtr rows = memory_.turned(0) + warp_ * Tile::bytes(kWarpRows);
    cp_async_ca_4(rows + lane_index() * 4, reinterpret_cast<const uint8*>(Spec::frequencies()) +
                                               lane_index() * kLaneBytes % kBytes);
    cp_async_commit_group();
  }

  // For the first document, and for those that the rotation's maker tells of.
  LAZYROPE_DEVICE void turn_as_told(ItemPtr item, int32 place) {
    turn_for(0, item.start().base, item, place);
    if constexpr (kTogether) {
      if (has_one_document<Memory>(item)) return;
#pragma unroll 1
      while (await_rotation()) turn_kept();
      pass_rotation();
    }
  }
  LAZYROPE_DEVICE float scale() const { return Memory::query_scale(params_, key_scale_); }

  // Queries are turned for a document before its first keys are widened.
  template <class Turn>
  LAZYROPE_DEVICE void turn_and_widen(const typename Memory::Table& table, int32 num_blocks,
                                      int32 place, const Turn& turn) {
    int32 block = windows_.begin(place);
    const int32 end = block + num_blocks;
    int32 document = 0;
    bool begins_document = true;
    bool has_values = false;
#pragma unroll 1
    while (true) {
      const bool has_keys = block < end;
      if (has_keys) {
        const BlockInfo info = table.info(block);
        if (begins_document) turn(info.base, document++);
        begins_document = info.ends_segment<Memory::kKeys>();
      }
      widener_.widen(has_keys, has_values);
      if (!has_keys) break;
      has_values = true;
      if (++block == end) continue;
      windows_.leave(block - 1);
      windows_.reach(block);
    }
    windows_.leave_last(end - 1);
  }

  // Of many rows each warp has its own. Zeros are behind an item's: they are turned, and read, all
  // the same.
  LAZYROPE_DEVICE void copy(ItemPtr item, int32 place) {
    const auto copy_position = [](SharedPtr to, const int32* from) { cp_async_ca_4(to, from); };
    const SharedPtr positions = memory_.positions(place);
    if constexpr (kHasManyRows) {
      const int32 first = warp_ * kWarpRows;
      for_each_query_chunk<Spec, Original, kWarpRows>(
          memory_.original(), params_.q, item.rows(), first, item.extent().num_rows - first, first,
          [](SharedPtr to, const uint8* from, bool exists) {
            cp_async_cg_16<true>(to, from, exists ? 16 : 0);
          });
      copy_row_positions<Spec, lazyrope::Team<kWarpThreads>, kWarpRows>(
          positions + first * 4, params_.step.positions, item, first, copy_position);
    } else {
      Team::sync();  // nobody turns the rows of the item before any more
      copy_queries(item.rows(), item.extent().num_rows);
      copy_row_positions<Spec, Team, kRows, Memory::kHeadRows>(positions, params_.step.positions,
                                                               item, 0, copy_position);
    }
    cp_async_commit_group();
    tell_asked();
    cp_async_wait_group<0>();
    if constexpr (kHasManyRows)
      bar_warp_sync();
    else
      Team::sync();
  }

  // For the first item.
  LAZYROPE_DEVICE void tell_asked() {
    if constexpr (Memory::kQueriesComeFirst) {
      if (!has_asked_) memory_.first_queries().tell_asked();
      has_asked_ = true;
    }
  }

  LAZYROPE_DEVICE void copy_queries(const ItemRows& rows, int32 num_rows) const {
#pragma unroll
    for (int head = 0; head < Memory::kHeads; ++head) {
      const int32 to = head * Memory::kHeadRows;
      copy_query_rows<Spec, Team>(memory_.original(), params_.q, rows_of_head(rows, head), 0,
                                  num_rows, to, to + num_rows);
    }
  }

  // Queries that no angle turns are the same for all documents.
  LAZYROPE_DEVICE void turn_for(int32 document, int32 base, ItemPtr item, int32 place) {
    if (document > 0 && !Memory::kQueriesTurn) return;
    if (kTogether && document > 0) {
      await_rotation();
      turn_kept();
    } else {
      give([&](SharedPtr turned) { turn_by_row(turned, base, item, place); });
    }
  }

  // What an item has is read again where it is needed: registers are few.
  template <class Turn>
  LAZYROPE_DEVICE void give(const Turn& turn) {
    turned_.wait(turn_.at);
    turn(memory_.turned(turn_.at));
    turned_.pass(turn_.at);
    turn_.advance();
  }

  LAZYROPE_DEVICE void turn_by_row(SharedPtr turned, int32 base, ItemPtr item, int32 place) const {
    clear_others(item.extent().num_rows);
    turn_rows(turned, base, item, place);
    fence_proxy_async();
  }

  // By the rotation that has been waited for, which is read before there is room for its queries.
  LAZYROPE_DEVICE void turn_kept() {
    if constexpr (kTogether) {
      const auto rotation = shared_rotation<Rotation>(memory_.rotation(rotation_.at));
      pass_rotation();
      give([&](SharedPtr turned) {
        const int32 first = warp_ * kWarpRows;
        copy_unrotated<Spec>(RowsOf<Tile>(turned, first),
                             RowsOf<Original>(memory_.original(), first), kWarpRows, scale());
        kept_.template turn<kWarpRows, kTurnedAtOnce>(rotation, turn_.at * Memory::kTurnedBytes);
        fence_proxy_async();
      });
    }
  }
  // Whether there is one, where its maker tells that.
  LAZYROPE_DEVICE bool await_rotation() {
    rotations_.wait(rotation_.at);
    return !Memory::kMakerTells || ld_shared<int32>(memory_.rotation_exists(rotation_.at)) != 0;
  }
  LAZYROPE_DEVICE void pass_rotation() {
    rotations_.pass(rotation_.at);
    rotation_.advance();
  }

  // Rows that an item does not have are read all the same, and are zero: what another request left
  // there would change when this one's maxima are raised, and so how it is rounded.
  LAZYROPE_DEVICE void clear_others(int32 num_rows) const {
    if constexpr (kHasManyRows) return;
    const int32 first = Memory::kHeads == 1 ? num_rows * Tile::kChunks : 0;
#pragma unroll 1
    for (int32 i = first + Team::rank(); i < kRows * Tile::kChunks; i += Team::size()) {
      const int32 row = i / Tile::kChunks;
      if (row % Memory::kHeadRows >= num_rows)
        st_shared(Tile::chunk(memory_.turned(turn_.at), row, i % Tile::kChunks), Chunk{});
    }
  }

  // Each warp rows of a head, or some of one's: few rows are divided as far as can be.
  LAZYROPE_DEVICE void turn_rows(SharedPtr turned, int32 base, ItemPtr item, int32 place) const {
    const auto& angles = angles_.get();
    constexpr int kWarps = Memory::kTurningWarps / Memory::kHeads;  // of a head
    static_assert(kWarps * Memory::kHeads == Memory::kTurningWarps);
    constexpr int32 kAlignment = kHasManyRows ? 4 : 1;
    const int32 num_rows = kHasManyRows ? kRows : item.extent().num_rows;  // of each head
    const int32 head = warp_ / kWarps;
    const int32 share = ceil_div(num_rows, kWarps * kAlignment) * kAlignment;
    const int32 first = warp_ % kWarps * share;
    const int32 at = head * Memory::kHeadRows + first;
    rotate_rows<Spec, kHasManyRows ? 4 : 2, kTogether>(
        RowsOf<Tile>(turned, at), RowsOf<Original>(memory_.original(), at),
        memory_.positions(place) + at * 4, smaller(num_rows - first, share),
        item.rows().first_row + first, base, angles, scale(),
        kTogether && !has_one_document<Memory>(item));
  }

  const AttendParams& params_;
  Memory memory_;
  WindowUser<Memory> windows_;
  FillSide turned_;
  RingPlace<Memory::kTurnedPlaces> turn_;
  UseSide rotations_;
  RingPlace<Memory::kRotationPlaces> rotation_;
  KvWidener<Spec, Memory> widener_;
  float key_scale_ = 1.0f;  // of the item
  bool has_asked_ = false;
  int32 warp_;
  Kept kept_;
  // Of many rows they are found anew: registers are few.
  LaneAngles<RowAngles<Spec, kHasManyRows>, !kHasManyRows> angles_;
};

}  // namespace lazyrope
