// A warpgroup that has all of an item's rows, as columns of its products: 64 keys, then 64 columns
// of values each, are the 64 rows that wgmma wants. So a few queries cost no more than they are.
// The scores of a block are made together with what the block before comes to.
//
// Where an item has two KV heads, a key's row is that of both, one head's columns behind the
// other's: what is brought is as with rows of twice the columns, and multiplied head by head. Or
// each head has a warpgroup of its own.
#pragma once

#include "family/sm90a/block_user.cuh"
#include "isa/bulk_copy.cuh"
#include "ops/exchange.cuh"
#include "ops/item_result.cuh"
#include "ops/sinks.cuh"
#include "ops/softcap.cuh"
#include "ops/softmax.cuh"

namespace lazyrope {

// What a warpgroup alone uses: weights of a block, and what its warps tell each other of each row.
template <int kRows, int kWeightBytes>
struct ColumnMemory {
  static constexpr int kTops = kWeightBytes;
  static constexpr int kSums = kTops + 4 * kRows * 4;
  static constexpr int kMaxima = kSums + 4 * kRows * 4;
  static constexpr int kFlags = kMaxima + kRows * 4;
  static constexpr int kBytes = kFlags + 16;
};

// All warps that compute, or those of a warpgroup, whose numbers take longer to tell.
template <class Memory, int kGroups = Memory::kGroups>
struct ColumnTeam {
  using Type = typename Memory::ConsumerGroups;
  LAZYROPE_DEVICE static int32 group() { return Type::team(); }
};
template <class Memory>
struct ColumnTeam<Memory, 1> {
  using Type = typename Memory::Consumers;
  LAZYROPE_DEVICE static int32 group() { return 0; }
};

template <class Spec, class Memory>
class ColumnConsumer {
  using Team = typename ColumnTeam<Memory>::Type;
  using Table = typename Memory::Table;
  using Mask = typename Spec::Mask;
  using Product = typename Spec::Product;
  static constexpr int kKeys = Memory::kKeys;
  // Of the warpgroup.
  static constexpr int kHeads = Memory::kHeads / Memory::kGroups;
  static constexpr int kRows = Memory::kRows / Memory::kGroups;
  static constexpr int kRowTiles = kRows / 8;
  static constexpr int kDimTiles = Product::kDimTiles;
  static constexpr bool kCaps = Spec::kSoftcap > 0.0f;
  using Own = ColumnMemory<kRows, Product::kWeightBytes>;
  using Accumulator = typename Product::Accumulator;
  using Factors = float[kRowTiles][2];
  static constexpr bool kHasFewSlices = Memory::kRows * num_slices(Spec::kHeadDim) <= 128;
  static constexpr Slices kSlices = kHasFewSlices ? kNarrowSlices : kWiderSlices;
  using Result = ItemResult<Spec, typename Memory::Consumers, kSlices>;
  static_assert(Team::size() == kWarpgroupThreads && kKeys == Product::kKeys);

 public:
  LAZYROPE_DEVICE ColumnConsumer(const AttendParams& params, Memory memory)
      : params_(params),
        memory_(memory),
        own_(memory.own() + group() * Own::kBytes),
        blocks_(params, memory) {}

  LAZYROPE_DEVICE void run() {
    for_each_item(memory_, [&](ItemPtr item, int32 place) {
      start(item);
      const int32 num_blocks = item.extent().num_blocks;
      int32 last = 0;
      if (num_blocks > 0)
        last = attend(item, place);
      else
        tell_no_stats();
      const Result result(params_, item);
      write_all(result, item.extent().num_rows);
      if (num_blocks > 0) blocks_.leave(last);  // behind the results, which others wait for
      result.finish(item.is_last(), memory_.at + Memory::kFlags);
    });
  }

 private:
  LAZYROPE_DEVICE static int32 group() { return ColumnTeam<Memory>::group(); }
  LAZYROPE_DEVICE static int32 first_head() { return group() * kHeads; }

  LAZYROPE_DEVICE void start(ItemPtr item) {
#pragma unroll
    for (int tile = 0; tile < kDimTiles; ++tile)
#pragma unroll
      for (int i = 0; i < Accumulator::kCount; ++i) rows_[tile][i] = 0.0f;
    softmax_.reset();
    if (Spec::kSinks && item.split().index == 0)
      add_sinks<Spec, kHeads>(softmax_, params_.sinks, rows_of_head(item.rows(), first_head()), 0,
                              item.extent().num_rows);
  }

  // All of its blocks, of which there are some; the number of the last.
  LAZYROPE_DEVICE int32 attend(ItemPtr item, int32 place) {
    const Table table = memory_.table(params_.step, item);
    const ItemExtent extent = item.extent();
    const Seen seen = {{extent.first_position, extent.last_position},
                       memory_.positions(place) + group() * kRows * 4};
    Accumulator scores;
    int32 block = blocks_.begin(place);
    const int32 last = block + extent.num_blocks - 1;
    BlockInfo info = table.info(block);
    blocks_.await_keys();
    multiply_keys(scores);
    wgmma_commit_group();
    wait_for_committed(scores);
    blocks_.pass_keys();
#pragma unroll 1
    while (true) {
      make_weights(scores, seen, info);
      // The last block's values by the same code, which is there then.
      const bool is_last = block == last;
      const ValidSlots slots(info);
      if (!is_last) {
        blocks_.look_ahead(block, last, info);
        blocks_.go_to(++block);
        blocks_.go_on();
        info = table.info(block);
        blocks_.await_keys();
      }
      const SharedPtr values = blocks_.full_values(slots);
      if (!is_last) multiply_keys(scores);
      multiply_values(values);
      wgmma_commit_group();
      if (is_last) tell_stats();
      wait_for_committed(scores);
      if (!is_last) blocks_.pass_keys();
      blocks_.pass_values();
      if (is_last) break;
    }
    return last;
  }

  LAZYROPE_DEVICE void multiply_keys(Accumulator& scores) const {
    wgmma_fence();
    Product::multiply_query_key(scores, blocks_.queries() + group() * Product::kQueryBytes,
                                blocks_.keys() + group() * Product::kColumnBytes);
  }

  LAZYROPE_DEVICE void multiply_values(SharedPtr values) {
    wgmma_fence();
    Product::multiply_weight_value(rows_, own_, values + group() * Product::kColumnBytes);
  }

  // There is time for it: memory is what all wait for.
  LAZYROPE_DEVICE void wait_for_committed(Accumulator& scores) {
    wgmma_wait_group<0>();
    scores.pin();
#pragma unroll
    for (int tile = 0; tile < kDimTiles; ++tile) rows_[tile].pin();
  }

  LAZYROPE_DEVICE void rescale(const Factors& factor) {
#pragma unroll
    for (int tile = 0; tile < kDimTiles; ++tile) softmax_.rescale(rows_[tile], factor);
  }

  // Each warp has waited for products before, and they have met since.
  LAZYROPE_DEVICE void leave_weights(const Accumulator& scores) const {
    Product::store(own_, scores);
    fence_proxy_async();
  }

  struct Seen {
    PositionRange queries;
    SharedPtr positions;
  };

  // Of all four warps, for products that they make together.
  LAZYROPE_DEVICE void make_weights(Accumulator& scores, const Seen& seen, const BlockInfo& info) {
    Factors factor;
    if (weigh(scores, seen, info, factor)) rescale(factor);
    leave_weights(scores);
    Team::sync();
  }

  // Scores become weights. True where rows are to be multiplied by `factor`: with an item's first,
  // for which they need not be, as with all others, by code that is there then.
  LAZYROPE_DEVICE bool weigh(Accumulator& scores, const Seen& seen, const BlockInfo& info,
                             Factors& factor) {
    const float scale_log2 = prepare(scores, seen, info);
    Factors top;
    const bool is_raised = is_any(softmax_.exceeds(scores, scale_log2, top));
    if (is_raised) raise_to(top, scale_log2, factor);
    softmax_.exponentiate(scores, scale_log2);
    return is_raised;
  }

  // Caps and masks scores, and returns what they are multiplied by.
  LAZYROPE_DEVICE float prepare(Accumulator& scores, const Seen& seen,
                                const BlockInfo& info) const {
    if constexpr (kCaps) cap_scores(scores, params_.scale_log2, Spec::kSoftcap);
    if (hides_keys<Mask, kKeys>(seen.queries, info))
      mask_scores<Mask>(scores, seen.positions, info.position, info.begin, info.end);
    return kCaps ? 1.0f : params_.scale_log2;
  }

  // Whether it is so in any lane of any warp.
  LAZYROPE_DEVICE bool is_any(bool is_so) const {
    const bool is_of_warp = vote_sync_any(is_so);
    if (lane_index() == 0) st_shared(own_ + (Own::kFlags + Team::warp() * 4), is_of_warp ? 1u : 0u);
    Team::sync();
    const Chunk flags = ld_shared<Chunk>(own_ + Own::kFlags);
    return (flags.word[0] | flags.word[1] | flags.word[2] | flags.word[3]) != 0;
  }

  // As softmax_.raise_to(), of all warps: `top` is each lane's greatest of each row.
  LAZYROPE_DEVICE void raise_to(Factors& top, float scale_log2, Factors& factor) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) top[m][h] = ColumnLanes::maximum(top[m][h]);
    tell(Own::kTops, top);
    Team::sync();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Told told = this->told(Own::kTops, ColumnLanes::row(m, h));
        top[m][h] =
            max_f32(max_f32(told.warp[0], told.warp[1]), max_f32(told.warp[2], told.warp[3]));
      }
    softmax_.raise_to(top, scale_log2, factor);
  }

  // What each warp has of a row.
  struct alignas(16) Told {
    float warp[4];
  };
  LAZYROPE_DEVICE void tell(int where, const Factors& values) const {
    if (lane_index() >= 4) return;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        st_shared(own_ + (where + ColumnLanes::row(m, h) * 16 + Team::warp() * 4), values[m][h]);
  }
  LAZYROPE_DEVICE Told told(int where, int32 row) const {
    return ld_shared<Told>(own_ + (where + row * 16));
  }

  // Once stats have been told. In a loop, for code that runs for the second time is there.
  LAZYROPE_DEVICE void write_all(const Result& result, int32 num_rows) const {
    Team::sync();
#pragma unroll 1
    for (int32 m = 0; m < kRowTiles; ++m)
      if (m * 8 % Memory::kHeadRows < num_rows) write(result, num_rows, m);
  }

  // While the last products are made. All have read what was told before, as they have met since.
  LAZYROPE_DEVICE void tell_stats() const {
    Factors sums;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) sums[m][h] = ColumnLanes::sum(softmax_.sum[m][h]);
    tell(Own::kSums, sums);
    if (!ColumnLanes::is_first()) return;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        st_shared(own_ + (Own::kMaxima + ColumnLanes::row(m, h) * 4), softmax_.maximum[m][h]);
  }

  // Of an item that sees nothing.
  LAZYROPE_DEVICE void tell_no_stats() const {
    Team::sync();
    tell_stats();
  }

  // A lane has one column of four rows; it exchanges them for four columns of one.
  LAZYROPE_DEVICE void write(const Result& result, int32 num_rows, int32 m) const {
    const int32 head = m * 8 / Memory::kHeadRows;
    RowPart part[kDimTiles];
#pragma unroll
    for (int tile = 0; tile < kDimTiles; ++tile) {
      choose(m, tile, part[tile].value);
      transpose(part[tile].value, 4);
    }
    const int32 mine = lane_index() / 4 % 4;
    const int32 row = ColumnLanes::row(m, mine / 2);
    const int32 row_of_head = row - head * Memory::kHeadRows;
    if (row_of_head >= num_rows) return;
    const Told sums = told(Own::kSums, row);
    const RowStats stats = {ld_shared<float>(own_ + (Own::kMaxima + row * 4)),
                            sums.warp[0] + sums.warp[1] + (sums.warp[2] + sums.warp[3])};
    const int32 quad = Team::warp() * 4 + mine % 2 * 2 + lane_index() / 16;
#pragma unroll
    for (int tile = 0; tile < kDimTiles; ++tile) part[tile].stats = stats;
    result.template write<16>(first_head() + head, row_of_head, quad, part);
  }

  // What the lane has of a row tile, which the compiler does not know: no registers lie at an
  // index.
  LAZYROPE_DEVICE void choose(int32 m, int tile, float (&value)[4]) const {
#pragma unroll
    for (int each = 0; each < kRowTiles; ++each)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (each == 0 || m == each) value[i] = TileAccess<Accumulator>::at(rows_[tile], each, 0, i);
  }

  const AttendParams& params_;
  Memory memory_;
  SharedPtr own_;
  BlockUser<Memory, TurnedQueries<Memory>> blocks_;
  Accumulator rows_[kDimTiles];
  SoftmaxState<kRowTiles, ColumnLanes> softmax_;
};

}  // namespace lazyrope
