// A warpgroup that has 64 of an item's rows: products, softmax, results. The scores of a block are
// made while the values of the block before are weighed.
#pragma once

#include "family/sm90a/block_user.cuh"
#include "ops/exchange.cuh"
#include "ops/item_result.cuh"
#include "ops/sinks.cuh"
#include "ops/softcap.cuh"
#include "ops/softmax.cuh"

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
  static constexpr bool kCaps = Spec::kSoftcap > 0.0f;

 public:
  LAZYROPE_DEVICE RowConsumer(const AttendParams& params, Memory memory)
      : params_(params), memory_(memory), blocks_(memory) {}

  LAZYROPE_DEVICE void run() {
    for_each_item(memory_, [&](ItemPtr item, int32 place, bool is_last) {
      start(item);
      positions_ = memory_.positions(place) + first_row() * 4;
      if (item.extent().num_blocks > 0) attend(item, place);
      softmax_.finish();
      leave(item, is_last);
    });
  }

 private:
  using Scores = Accumulator<kKeys>;

  LAZYROPE_DEVICE static int32 group() { return Team::rank() / kWarpgroupThreads; }
  // Of the warp.
  LAZYROPE_DEVICE static int32 first_row() { return Team::rank() / kWarpThreads * 16; }

  LAZYROPE_DEVICE void start(ItemPtr item) {
#pragma unroll
    for (int i = 0; i < Accumulator<kHeadDim>::kCount; ++i) rows_[i] = 0.0f;
    softmax_.reset();
    if (Spec::kSinks && item.split().index == 0)
      add_sinks<Spec>(softmax_, params_.sinks, item.rows(), first_row(), item.extent().num_rows);
  }

  LAZYROPE_DEVICE void attend(ItemPtr item, int32 place) {
    const Table table = memory_.table(params_.step, item);
    const ItemExtent extent = item.extent();
    const PositionRange queries = {extent.first_position, extent.last_position};
    Scores scores;
    OperandA weights[kKeys / 16];
    float factor[1][2];
    int32 block = blocks_.begin(place);
    const int32 last = block + extent.num_blocks - 1;
    BlockInfo info = table.info(block);
    multiply_keys(scores, blocks_.full_keys());
    wgmma_wait_group<0>();
    pass_keys(scores);
    weigh(scores, queries, info, factor);
    Product::pack(weights, scores);
#pragma unroll 1
    while (block < last) {
      const ValidSlots before(info);
      info = blocks_.enter(table, ++block, info.base);
      const SharedPtr keys = blocks_.full_keys();
      const SharedPtr values = blocks_.full_values(before);
      multiply_keys(scores, keys);
      multiply_values(weights, values);
      wgmma_wait_group<1>();
      pass_keys(scores);
      const bool is_raised = weigh(scores, queries, info, factor);
      wait_for_values(weights);
      if (is_raised) softmax_.rescale(rows_, factor);
      Product::pack(weights, scores);
    }
    multiply_last_values(weights, blocks_.full_values(ValidSlots(info)));
    wait_for_values(weights);
    blocks_.leave(last);
  }

  LAZYROPE_DEVICE SharedPtr group_queries() const {
    return blocks_.queries() + group() * Memory::Tile::bytes(kGroupRows);
  }
  LAZYROPE_DEVICE void multiply_keys(Scores& scores, SharedPtr keys) const {
    wgmma_fence();
    Product::multiply_query_key(scores, group_queries(), keys);
    wgmma_commit_group();
  }

  LAZYROPE_DEVICE void multiply_values(const OperandA (&weights)[kKeys / 16], SharedPtr values) {
    Product::template multiply_weight_value<kKeys>(rows_, weights, values);
    wgmma_commit_group();
  }

  // With no keys before them.
  LAZYROPE_DEVICE void multiply_last_values(const OperandA (&weights)[kKeys / 16],
                                            SharedPtr values) {
    wgmma_fence();
    multiply_values(weights, values);
  }

  LAZYROPE_DEVICE void wait_for_values(OperandA (&weights)[kKeys / 16]) {
    wgmma_wait_group<0>();
    rows_.pin();
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) weights[i].pin();
    blocks_.pass_values();
  }

  LAZYROPE_DEVICE void pass_keys(Scores& scores) {
    scores.pin();
    blocks_.pass_keys();
  }
  // Scores become weights; as softmax_.raise().
  LAZYROPE_DEVICE bool weigh(Scores& scores, PositionRange queries, const BlockInfo& info,
                             float (&factor)[1][2]) {
    if constexpr (kCaps) cap_scores(scores, params_.scale_log2, Spec::kSoftcap);
    mask_block<Mask, kKeys>(scores, queries, positions_, info);
    const float scale_log2 = kCaps ? 1.0f : params_.scale_log2;
    const bool is_raised = softmax_.raise(scores, scale_log2, factor);
    softmax_.exponentiate(scores, scale_log2);
    return is_raised;
  }

  // Neighbouring lanes exchange columns, so that each has four together.
  LAZYROPE_DEVICE void leave(ItemPtr item, bool is_last) const {
    const int32 num_rows = item.extent().num_rows;
    const ItemResult<Spec, Team> result(params_, item);
    const int32 lane = lane_index();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int32 row = first_row() + row_of(lane, 2 * h);
      RowPart part;
      part.stats = {softmax_.maximum[0][h], softmax_.sum[0][h]};
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n += 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          part.value[i] = rows_[4 * n + 2 * h + i];
          part.value[2 + i] = rows_[4 * n + 4 + 2 * h + i];
          exchange(part.value[i], part.value[2 + i], 1);
        }
        if (row < num_rows) result.write(0, row, 2 * (n + lane % 2) + lane % 4 / 2, part);
      }
    }
    result.finish(is_last, memory_.at + Memory::kFlags);
  }

  const AttendParams& params_;
  Memory memory_;
  SharedPtr positions_ = {};  // of the warp's rows
  BlockUser<Memory> blocks_;
  Accumulator<kHeadDim> rows_;
  SoftmaxState<1> softmax_;
};

}  // namespace lazyrope
