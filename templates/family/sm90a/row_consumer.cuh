// A warpgroup that has 64 of an item's rows: products, softmax, results. The scores of a block are
// made while the values of the block before are weighed.
//
// Only a row's first scores are looked through for the greatest: that takes longer than products
// leave time for. Where weights show later that some score was much greater, which is hardly ever
// so, the warp makes its scores again and looks. Keys are therefore held until weights are made.
#pragma once

#include "family/sm90a/block_user.cuh"
#include "ops/exchange.cuh"
#include "ops/item_result.cuh"
#include "ops/sinks.cuh"
#include "ops/softcap.cuh"
#include "ops/softmax.cuh"
#include "pipeline/alternation.cuh"

namespace lazyrope {

template <class Spec, class Memory>
class RowConsumer {
  using Team = typename Memory::Consumers;
  using Table = typename Memory::Table;
  using Mask = typename Spec::Mask;
  using Product = typename Spec::Product;
  static constexpr int kKeys = Memory::kKeys;
  static constexpr int kHeadDim = Memory::kHeadDim;
  static constexpr int kGroupRows = 64;
  // Eights of columns that are weighed before the values before are waited for, which the compiler
  // would do sooner did not a branch lie between.
  static constexpr int kEarly = kHeadDim > 128 ? 4 : 6;
  // Where a product of scores is asked for at once there is time until it is made. One of longer
  // rows is asked for until it nearly is.
  static constexpr bool kGoesBetween = kHeadDim <= 128;
  static constexpr bool kCaps = Spec::kSoftcap > 0.0f;
  // Scores that are weighed anew, an item's first among them, are weighed by one copy of the code,
  // a fifteenth of the kernel, but where that is slower: of 64 columns by 1%, and of longer rows
  // ptxas then has what describes products' operands in registers of lanes, and copies it for each.
  static constexpr bool kWeighsBefore = kHeadDim != 128;
  static constexpr bool kTurns = Memory::kConsumersTurn && Memory::kQueriesTurn;
  static_assert(!kTurns || !kGoesBetween, "turn_between() goes to no block");
  using Result = ItemResult<Spec, Team, kWidestSlices>;
  using Queries =
      typename QueriesOf<Spec, Memory, Memory::kConsumersTurn, Memory::kQueriesTurn>::Type;

 public:
  LAZYROPE_DEVICE RowConsumer(const AttendParams& params, Memory memory)
      : params_(params), memory_(memory), blocks_(params, memory), products_(group()) {}

  LAZYROPE_DEVICE void run() {
    for_each_item(memory_, [&](ItemPtr item, int32 place) {
      start(item);
      place_ = place;
      if (item.extent().num_blocks > 0) attend(item, place);
      finish_sums();
      leave(item);
    });
  }

 private:
  using Scores = Accumulator<kKeys>;

  LAZYROPE_DEVICE static int32 group() { return Team::rank() / kWarpgroupThreads; }
  // Of the warp.
  LAZYROPE_DEVICE static int32 first_row() { return Team::rank() / kWarpThreads * 16; }

  LAZYROPE_DEVICE void start(ItemPtr item) {
#pragma unroll
    for (int i = 0; i < Product::Rows::kCount; ++i) rows_[i] = 0.0f;
    softmax_.reset();
    key_scale_ = Memory::key_scale_of(params_, item);
    if (Spec::kSinks && item.split().index == 0)
      add_sinks<Spec>(softmax_, params_.sinks, item.rows(), first_row(), item.extent().num_rows);
    if constexpr (Product::kAddsWeights && Spec::kSinks) {
      softmax_.finish();
#pragma unroll
      for (int h = 0; h < 2; ++h) Product::sum(rows_, h) = softmax_.sum[0][h];
    }
  }
  LAZYROPE_DEVICE void finish_sums() {
    if constexpr (Product::kAddsWeights) {
#pragma unroll
      for (int h = 0; h < 2; ++h) softmax_.sum[0][h] = Product::sum(rows_, h);
    } else {
      softmax_.finish();
    }
  }

  LAZYROPE_DEVICE void attend(ItemPtr item, int32 place) {
    const Table table = memory_.table(params_.step, item);
    const ItemExtent extent = item.extent();
    const PositionRange queries = {extent.first_position, extent.last_position};
    Scores scores;
    OperandA weights[kKeys / 16];
    int32 block = blocks_.begin(place);
    const int32 last = block + extent.num_blocks - 1;
    BlockInfo info = table.info(block);
    blocks_.await_keys();
    multiply_keys(scores);
    wgmma_wait_group<0>();
    scores.pin();
    if constexpr (kTurns) look_ahead(block, last, info);
    blocks_.clear_cut_runs(ValidSlots(info));
    bool are_zero = !(Product::kAddsWeights && Spec::kSinks);  // rows, but for what a sink adds
    const auto weigh_anew = [&] {
      softmax_.weigh(scores, rows_, prepare(scores, queries, info), are_zero);
      are_zero = false;
    };
    // Makes and weighs the next block's scores. False where a maximum was too small.
    const auto go_to_next = [&] {
      ++block;
      if (!kGoesBetween) blocks_.go_to(block);
      info = multiply_both(scores, weights, table, block);
      wgmma_wait_group<1>();
      scores.pin();
      if constexpr (kTurns) look_ahead(block, last, info);
      return weigh(weights, scores, prepare<true>(scores, queries, info), info);
    };
    if (kWeighsBefore) weigh_anew();
    while (true) {
      if (!kWeighsBefore) weigh_anew();
      Product::pack(weights, scores);
      blocks_.pass_keys();
      bool holds = true;
      if constexpr (Memory::kConsumersTurn) {
#pragma unroll 1
        while (block < last) {
          holds = go_to_next();
          if (!holds) break;
          blocks_.pass_keys();
        }
      } else {
        // A loop of a document's blocks, in which there is nothing of documents.
#pragma unroll 1
        while (holds && block < last) {
          blocks_.go_on_behind(info);
#pragma unroll 1
          do {
            holds = go_to_next();
            if (!holds) break;
            blocks_.pass_keys();
          } while (block < last && !info.template ends_segment<kKeys>());
        }
      }
      if (holds) break;
      if constexpr (kTurns) blocks_.turn_queries_back();
      Product::multiply_query_key_by_warp(scores, blocks_.queries(), first_row(), blocks_.keys());
      if constexpr (kTurns) blocks_.restore_queries();
      if (kWeighsBefore) weigh_anew();
    }
    multiply_values(weights, blocks_.full_values());
    wait_for_values(weights);
    blocks_.leave(last);
  }

  LAZYROPE_DEVICE void look_ahead(int32 block, int32 last, const BlockInfo& info) {
    blocks_.look_ahead(block, last, info);
    blocks_.ask_for_queries();
  }

  LAZYROPE_DEVICE void multiply_keys(Scores& scores) const {
    constexpr int32 kGroupBytes = Memory::QueryTile::bytes(kGroupRows);
    wgmma_fence();
    Product::multiply_query_key(scores, blocks_.query_columns(products_.group() * kGroupBytes),
                                blocks_.key_columns());
    wgmma_commit_group();
  }

  // Asks for the scores of `block`, and for what the block before comes to.
  LAZYROPE_DEVICE BlockInfo multiply_both(Scores& scores, const OperandA (&weights)[kKeys / 16],
                                          const Table& table, int32 block) {
    if constexpr (kTurns)
      if (blocks_.changes_document()) return turn_between(scores, weights, table, block);
    blocks_.await_keys();
    products_.await_turn();
    multiply_keys(scores);
    if (kGoesBetween) blocks_.go_to_known(block);
    const BlockInfo info = table.info(block);
    multiply_values(weights, blocks_.full_values());
    products_.give_turn();
    return info;
  }

  // The same where the queries must be turned for `block` first, meanwhile. The scores are there
  // then.
  LAZYROPE_DEVICE BlockInfo turn_between(Scores& scores, const OperandA (&weights)[kKeys / 16],
                                         const Table& table, int32 block) {
    multiply_values(weights, blocks_.full_values());
    blocks_.turn_queries();
    blocks_.await_keys();
    products_.await_turn();
    multiply_keys(scores);
    products_.give_turn();
    wait_for_both(scores);
    return table.info(block);
  }
  LAZYROPE_DEVICE void wait_for_both(Scores& scores) {
    wgmma_wait_group<0>();
    scores.pin();
    rows_.pin();
  }

  // Weighs a block, whose scores have been shifted, while the values of the block before are
  // multiplied. False where a maximum was too small. What lanes add where products do is not
  // computed, for nobody reads it.
  LAZYROPE_DEVICE bool weigh(OperandA (&weights)[kKeys / 16], Scores& scores, float scale,
                             const BlockInfo& info) {
    float added[1][2] = {};
    softmax_.template exponentiate<0, kEarly>(scores, scale, added);
    blocks_.clear_next_cut_runs(ValidSlots(info));
    softmax_.template exponentiate<kEarly, kKeys / 8>(scores, scale, added);
    wait_for_values(weights);
    blocks_.look_for_both();
    Product::pack(weights, scores);
    const bool lane_holds = Product::kAddsWeights
                                ? Product::are_at_most(weights, softmax_.kMostAdded)
                                : softmax_.holds(added);
    const bool holds = !vote_sync_any(!lane_holds);
    if (holds) softmax_.add(added);
    return holds;
  }

  LAZYROPE_DEVICE void multiply_values(const OperandA (&weights)[kKeys / 16], SharedPtr values) {
    wgmma_fence();
    Product::template multiply_weight_value<kKeys>(rows_, weights, values, memory_.ones());
    wgmma_commit_group();
  }

  LAZYROPE_DEVICE void wait_for_values(OperandA (&weights)[kKeys / 16]) {
    wgmma_wait_group<0>();
    rows_.pin();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) weights[i].pin();
    blocks_.pass_values();
  }

  // Caps and masks scores, and shifts them for maxima that are known already. Returns what they are
  // multiplied by. Most need neither: one branch tells.
  template <bool kShifts = false>
  LAZYROPE_DEVICE float prepare(Scores& scores, PositionRange queries,
                                const BlockInfo& info) const {
    const float scale = Memory::kScalesQueries ? 1.0f : params_.scale_log2 * key_scale_;
    if constexpr (kCaps) cap_scores(scores, scale, Spec::kSoftcap);
    const bool masks = hides_keys<Mask, kKeys>(queries, info);
    const bool shifts = kShifts && softmax_.shifts();
    if (masks || shifts) {
      const SharedPtr positions = memory_.positions(place_) + first_row() * 4;
      if (masks) mask_scores<Mask>(scores, positions, info.position, info.begin, info.end);
      if (shifts) softmax_.shift(scores);
    }
    return kCaps ? 1.0f : scale;
  }

  LAZYROPE_DEVICE void leave(ItemPtr item) const {
    const int32 num_rows = item.extent().num_rows;
    const Result result(params_, item);
    if (result.is_whole())
      write_output(result.output(), num_rows);
    else
      write_part(result, num_rows);
    result.finish(item.is_last(), memory_.at + Memory::kFlags);
  }

  // What the lane has of one of its two rows. Both rows are written by one copy of the code, and no
  // registers lie at an index.
  LAZYROPE_DEVICE float column(int32 h, int n, int i) const {
    return h == 0 ? rows_[4 * n + i] : rows_[4 * n + 2 + i];
  }
  LAZYROPE_DEVICE RowStats stats(int32 h) const {
    return h == 0 ? RowStats{softmax_.maximum[0][0], softmax_.sum[0][0]}
                  : RowStats{softmax_.maximum[0][1], softmax_.sum[0][1]};
  }

  // Four lanes exchange columns, so that each has eight together. No branch stands between.
  LAZYROPE_DEVICE void write_output(const OutputRows<Spec>& output, int32 num_rows) const {
    static_assert(kHeadDim % 32 == 0);
    const int32 lane = lane_index();
#pragma unroll 1
    for (int32 h = 0; h < 2; ++h) {
      const int32 row = first_row() + row_of(lane, 2 * h);
      const bool exists = row < num_rows;
      const RowStats stats = this->stats(h);
      const float scale = output.scale_of(0, stats.sum);
      uint8* to = output.place_of(0, row) + lane % 4 * 16;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n += 4) {
        Chunk chunk;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          chunk.word[i] =
              Spec::Element::pack(column(h, n + i, 0) * scale, column(h, n + i, 1) * scale);
        transpose(chunk.word, 1);
        if (exists) st_global(reinterpret_cast<Chunk*>(to + n * 16), chunk);
      }
      if (exists && lane % 4 == 0) output.write_lse(0, row, stats);
    }
  }

  LAZYROPE_DEVICE void write_part(const Result& result, int32 num_rows) const {
    const int32 lane = lane_index();
#pragma unroll 1
    for (int32 h = 0; h < 2; ++h) {
      const int32 row = first_row() + row_of(lane, 2 * h);
      float pairs[kHeadDim / 8][2];
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        pairs[n][0] = column(h, n, 0);
        pairs[n][1] = column(h, n, 1);
      }
      if (row < num_rows) result.part().write_pairs(row, lane % 4, pairs, stats(h));
    }
  }

  const AttendParams& params_;
  Memory memory_;
  int32 place_ = 0;         // of the item
  float key_scale_ = 1.0f;  // likewise
  BlockUser<Memory, Queries> blocks_;
  Alternation<Memory::kProductsBarrier> products_;
  typename Product::Rows rows_;
  SoftmaxState<1, RowLanes, Memory::kScalesQueries> softmax_;
};

}  // namespace lazyrope
