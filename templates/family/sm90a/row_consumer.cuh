// A consumer warpgroup of the prefill kernel: products, softmax and results of 64 of a work tile's
// 128 rows.
//
// It computes, for each block: scores = queries x keys^T, weights = softmax step of the scores, and
// rows += weights x values. The scores of a block are issued together with the value product of the
// block before, so softmax overlaps with products, as in FlashAttention-3. MmaOrder makes the two
// warpgroups issue alternately.
//
// Reads: rotated queries [64, head_dim], stages of keys and of values [kKeys, head_dim], row
// positions and the block table, in shared memory.
// Writes: out and lse of the rows, or their partial result (ops/work_tile_result.cuh).
//
// Only a row's first scores are searched for their maximum, because the search takes longer than
// the products. Later scores far above the maximum are rare, and their weights reveal them. The
// warp then computes its scores again, without the other warps, and searches them. Therefore a
// block's keys are released only after its weights are known.
//
// Role: both consumer warpgroups. Four lanes share two rows, so a thread has a quarter of the
// columns of two rows. The warps synchronize by the pipelines (consumer_pipelines.cuh), by
// MmaOrder, and by named barrier 2 in clear_partial_runs() and WorkTileResult::finish().
#pragma once

#include "family/sm90a/consumer_pipelines.cuh"
#include "family/sm90a/row_totals.cuh"
#include "family/sm90a/run_sums.cuh"
#include "ops/exchange.cuh"
#include "ops/key_bias.cuh"
#include "ops/page_mass.cuh"
#include "ops/quantize_queries.cuh"
#include "ops/sinks.cuh"
#include "ops/softcap.cuh"
#include "ops/softmax.cuh"
#include "ops/temperature.cuh"
#include "ops/work_tile_result.cuh"
#include "pipeline/mma_order.cuh"

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
  // The groups of eight columns whose weights are computed before a branch in softmax_step(). The
  // branch keeps the compiler from moving these computations after the wait for the previous value
  // product. A product of 8 bits takes as long as the weights of half a block.
  static constexpr int kEarlyColumns = Product::kFloat8 ? 8 : kHeadDim > 128 ? 4 : 6;
  // The branch is that of clear_next_partial_runs(). With products of 8 bits, which need not clear
  // anything, it is the one that releases the previous block's window.
  static constexpr bool kFinishesLate = Product::kFloat8;
  // Up to this head_dim, a warp issues a score product quickly and has time for other work until
  // the product completes. With longer rows the issue takes nearly as long as the product.
  static constexpr bool kAdvancesDuringMma = kHeadDim <= 128;
  // A full softmax step is needed for a work tile's first scores and for scores that are computed
  // again. At head_dim 128 one instance of its code, a fifteenth of the kernel, serves both. At
  // other head dims one instance is slower: by 1% at 64. With longer rows ptxas would then keep the
  // operands' descriptors in the lanes' registers, and copy them for each product.
  // With products of 8 bits, two instances that also store page masses would spill registers.
  static constexpr bool kStepsBeforeLoop =
      kHeadDim != 128 && !(Product::kFloat8 && Spec::kMeasuresPageMass);
  static constexpr bool kRotatesQueries = Memory::kConsumersRotate && Memory::kHasRotation;
  static_assert(!kFinishesLate || kAdvancesDuringMma);
  static_assert(!kRotatesQueries || !kAdvancesDuringMma, "rotate_between() advances to no block");
  using Result = WorkTileResult<Spec, Team,
                                kHeadDim % kWidestSlices == 0 ? kWidestSlices
                                : kHeadDim % kWideSlices == 0 ? kWideSlices
                                                              : kNarrowSlices>;
  // If true, consumers load biases and add them to the scores.
  enum : bool { kAddsBiases = Spec::kHasKeyBias && !Memory::kMultipliesBiases };
  using KeyBiases = typename SelectType<kAddsBiases, RowKeyBias<kKeys>, NoKeyBias>::Type;
  using Rows = typename Product::Rows;
  using Totals = typename SelectType<Product::kFloat8, RowTotals<Rows>, NoRowTotals<Rows>>::Type;
  using Queries =
      typename QueriesFor<Spec, Memory, Memory::kConsumersRotate, Memory::kHasRotation>::Type;

 public:
  LAZYROPE_DEVICE RowConsumer(const typename Memory::Params& params, Memory memory)
      : launch_(params),
        params_(params.attend),
        memory_(memory),
        pipelines_(params.attend, memory),
        mma_order_(group()),
        totals_(memory.totals() + mma_order_.group() * Totals::kBytes,
                Team::rank() % kWarpgroupThreads) {}

  LAZYROPE_DEVICE void run() {
    for_each_work_tile(memory_, [&](WorkTilePtr work_tile, int32 stage) {
      start(work_tile);
      stage_ = stage;
      if (work_tile.extent().num_blocks > 0) attend(work_tile, stage);
      totals_.finish(acc_o_);
      finish_sums();
      store_result(work_tile);
    });
  }

 private:
  using Scores = Accumulator<kKeys>;
  static constexpr int kWeights = kKeys / Product::kKeysPerOperand;

  LAZYROPE_DEVICE static int32 group() { return Team::rank() / kWarpgroupThreads; }
  // Returns the first row of the warp.
  LAZYROPE_DEVICE static int32 first_row() { return Team::rank() / kWarpThreads * 16; }

  // If true, products add up the weights of each run, together with the next block's scores. Others
  // take the weights of a block from its scores.
  static constexpr bool kAddsUpRuns = Memory::kAddsUpRuns;
  using RunSums = typename SelectType<kAddsUpRuns, BlockRunSums<kKeys>, NoRunSums>::Type;

  LAZYROPE_DEVICE void start(WorkTilePtr work_tile) {
#pragma unroll
    for (int i = 0; i < Rows::kCount; ++i) acc_o_[i] = 0.0f;
    totals_.reset();
    softmax_.reset();
    key_scale_ = Memory::key_scale_of(params_, work_tile);
    if (Spec::kSinks && work_tile.split().index == 0)
      add_sinks<Spec>(softmax_, params_.sinks, work_tile.rows(), first_row(),
                      work_tile.extent().num_rows);
    if constexpr (Product::kAddsWeights && Spec::kSinks) {
      softmax_.finish();
#pragma unroll
      for (int h = 0; h < 2; ++h) Product::sum(acc_o_, h) = softmax_.sum[0][h];
    }
  }
  LAZYROPE_DEVICE void finish_sums() {
    if constexpr (Product::kAddsWeights) {
#pragma unroll
      for (int h = 0; h < 2; ++h) softmax_.sum[0][h] = Product::sum(acc_o_, h);
    } else {
      softmax_.finish();
    }
  }

  LAZYROPE_DEVICE void attend(WorkTilePtr work_tile, int32 stage) {
    const Table table = memory_.table(params_.step, work_tile);
    const WorkTileExtent extent = work_tile.extent();
    const PositionRange queries = {extent.first_position, extent.last_position};
    const auto mass_rows = page_mass_rows(work_tile);
    RunSums run_sums;
    Scores scores;
    OperandA weights[kWeights];
    int32 block = pipelines_.begin(stage);
    const int32 last = block + extent.num_blocks - 1;
    BlockInfo info = table.info(block);
    load_key_biases(table, block);
    compute_first_scores(scores, block, last, info);
    // The accumulators are zero, unless a sink has added its weight.
    bool are_zero = !(Product::kAddsWeights && Spec::kSinks);
    const auto full_softmax_step = [&] {
      const auto scale = prepare_scores(scores, queries, info);
      load_next_key_biases(table, block, last);
      SummedRows rows = {acc_o_, totals_};
      softmax_.softmax_step(scores, rows, scale, are_zero, !may_show_one_key(queries, info));
      are_zero = false;
      store_page_mass(scores, mass_rows, table, block, info);
      run_sums.name_runs(table, block, info);
    };
    // Computes the scores and weights of the next block. Returns false if a maximum was too small.
    const auto compute_next_block = [&] {
      ++block;
      if (!kAdvancesDuringMma) pipelines_.advance_to(block);
      info = issue_both_products(scores, weights, run_sums, table, block);
      wgmma_wait_group<1>();
      scores.pin();
      store_run_sums(run_sums, mass_rows);
      run_sums.name_runs(table, block, info);
      if constexpr (kRotatesQueries) detect_document_change(block, last, info);
      const auto scale = prepare_scores<true>(scores, queries, info);
      load_next_key_biases(table, block, last);
      const bool maxima_hold = softmax_step(weights, scores, scale, info, block);
      store_page_mass(scores, mass_rows, table, block, info);
      return maxima_hold;
    };
    if (kStepsBeforeLoop) full_softmax_step();
    while (true) {
      if (!kStepsBeforeLoop) full_softmax_step();
      Product::pack(weights, scores);
      pipelines_.release_keys();
      bool maxima_hold = true;
      if constexpr (Memory::kConsumersRotate) {
#pragma unroll 1
        while (block < last) {
          maxima_hold = compute_next_block();
          if (!maxima_hold) break;
          pipelines_.release_keys();
        }
      } else {
        // The inner loop has a document's blocks, and no code for documents.
#pragma unroll 1
        while (maxima_hold && block < last) {
          pipelines_.next_document_after(info);
#pragma unroll 1
          do {
            maxima_hold = compute_next_block();
            if (!maxima_hold) break;
            pipelines_.release_keys();
          } while (block < last && !info.template ends_segment<kKeys>());
        }
      }
      if (maxima_hold) break;
      load_key_biases(table, block);
      compute_scores_again(scores);
      if (kStepsBeforeLoop) full_softmax_step();
    }
    multiply_values(weights, pipelines_.wait_for_values(), run_sums);
    wait_for_value_product(weights);
    store_run_sums(run_sums, mass_rows);
    pipelines_.finish_work_tile(last);
  }

  // Tells whether one of the queries may see a single key, which is in this block. Its result is
  // then the key's value, bit for bit, if the weight is 1: the score itself must be the maximum.
  LAZYROPE_DEVICE static bool may_show_one_key(PositionRange queries, const BlockInfo& info) {
    if constexpr (requires { Mask::kRestarts; })
      if (Mask::first_key(queries.first) != Mask::first_key(queries.last)) return true;
    const int32 end = smaller(info.end, kKeys);
    return visible_end<Mask>(queries.first, info.position, end) -
               visible_begin<Mask>(queries.first, info.position, info.begin, end) <=
           1;
  }

  // Computes the scores of the work tile's first block.
  LAZYROPE_DEVICE void compute_first_scores(Scores& scores, int32 block, int32 last,
                                            const BlockInfo& info) {
    pipelines_.wait_for_keys();
    multiply_keys(scores);
    wgmma_wait_group<0>();
    scores.pin();
    load_query_scales();
    if constexpr (kRotatesQueries) detect_document_change(block, last, info);
    pipelines_.clear_partial_runs(ValidSlots(info));
  }

  // Loads the factors of the lane's rows from scores of 8-bit queries to logits in log2 units.
  LAZYROPE_DEVICE void load_query_scales() {
    if constexpr (Product::kFloat8) {
      const SharedPtr positions = memory_.positions(stage_) + first_row() * 4;
      const SharedPtr scales = memory_.query_scales(stage_);
      const auto of_rows = scale_of_rows<Spec, Scores>(params_.scale_log2 * key_scale_, positions);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        query_scales_.value[0][h] =
            of_rows.of(0, h) * QueryScale::load(scales, first_row() + RowLanes::row(0, h)).value();
    }
  }

  // Computes the present block's scores of the warp's rows again, without the other warps.
  LAZYROPE_DEVICE void compute_scores_again(Scores& scores) const {
    if constexpr (kRotatesQueries) pipelines_.rotate_queries_back();
    Product::multiply_query_key_by_warp(scores, pipelines_.queries(), first_row(),
                                        pipelines_.keys());
    if constexpr (Memory::kMultipliesBiases)
      Product::add_columns_by_warp(scores, pipelines_.key_biases());
    if constexpr (kRotatesQueries) pipelines_.restore_queries();
  }

  LAZYROPE_DEVICE void detect_document_change(int32 block, int32 last, const BlockInfo& info) {
    pipelines_.detect_document_change(block, last, info);
    pipelines_.prefetch_queries();
  }

  // Loads the biases of a block's keys.
  LAZYROPE_DEVICE void load_key_biases(const Table& table, int32 block) {
    if constexpr (kAddsBiases)
      key_biases_.load(launch_.key_bias, table, block, 0, memory_.work_tile(stage_).rows().kv_head);
  }
  // Loads those of the next block, when the scores of `block` have theirs. They arrive while
  // weights and products are computed. A load for the present block would delay its products: the
  // compiler moves instructions that wait for the load between these.
  LAZYROPE_DEVICE void load_next_key_biases(const Table& table, int32 block, int32 last) {
    if constexpr (kAddsBiases) {
      if (block == last) return;
      pipelines_.await_window_of(block + 1);
      load_key_biases(table, block + 1);
    }
  }

  // Issues the scores of the present keys, and the sums of the previous block's weights.
  LAZYROPE_DEVICE void multiply_keys_and_add_up(Scores& scores, RunSums& sums,
                                                const OperandA (&weights)[kWeights]) const {
    multiply_keys_uncommitted(scores);
    add_up_runs(sums, weights);
    wgmma_commit_group();
  }
  LAZYROPE_DEVICE void multiply_keys(Scores& scores) const {
    multiply_keys_uncommitted(scores);
    wgmma_commit_group();
  }
  LAZYROPE_DEVICE void multiply_keys_uncommitted(Scores& scores) const {
    constexpr int32 kGroupBytes = Memory::QueryTile::bytes(kGroupRows);
    wgmma_fence();
    Product::multiply_query_key(scores, pipelines_.query_columns(mma_order_.group() * kGroupBytes),
                                pipelines_.key_columns());
    if constexpr (Memory::kMultipliesBiases)
      Product::multiply_more_columns(scores, memory_.bias_ones(), pipelines_.bias_columns());
  }

  // Issues the scores of `block`, and the value product of the block before.
  LAZYROPE_DEVICE BlockInfo issue_both_products(Scores& scores, const OperandA (&weights)[kWeights],
                                                RunSums& run_sums, const Table& table,
                                                int32 block) {
    if constexpr (kRotatesQueries)
      if (pipelines_.changes_document())
        return rotate_between(scores, weights, run_sums, table, block);
    pipelines_.wait_for_keys();
    mma_order_.order_wait();
    multiply_keys_and_add_up(scores, run_sums, weights);
    if constexpr (kFinishesLate)
      pipelines_.enter_ready(block);
    else if (kAdvancesDuringMma)
      pipelines_.advance_to_ready(block);
    const BlockInfo info = table.info(block);
    multiply_values(weights, pipelines_.wait_for_values());
    mma_order_.order_arrive();
    return info;
  }

  // Does the same if the queries must first be rotated for `block`, which overlaps with the value
  // product. Both products have completed on return.
  LAZYROPE_DEVICE BlockInfo rotate_between(Scores& scores, const OperandA (&weights)[kWeights],
                                           RunSums& run_sums, const Table& table, int32 block) {
    multiply_values(weights, pipelines_.wait_for_values(), run_sums);
    pipelines_.rotate_queries();
    pipelines_.wait_for_keys();
    mma_order_.order_wait();
    multiply_keys(scores);
    mma_order_.order_arrive();
    wait_for_both_products(scores);
    return table.info(block);
  }
  LAZYROPE_DEVICE void wait_for_both_products(Scores& scores) {
    wgmma_wait_group<0>();
    scores.pin();
    acc_o_.pin();
  }

  // Computes the weights of a block, whose scores have been shifted, while the value product of the
  // previous block runs. Returns false if a maximum was too small. If products also sum the
  // weights, the lanes' sums are unused, and the compiler removes them.
  template <class Scale>
  LAZYROPE_DEVICE bool softmax_step(OperandA (&weights)[kWeights], Scores& scores,
                                    const Scale& scale, const BlockInfo& info, int32 block) {
    float added[1][2] = {};
    softmax_.template exponentiate<0, kEarlyColumns>(scores, scale, added);
    if constexpr (kFinishesLate)
      pipelines_.finish(block - 1);
    else
      pipelines_.clear_next_partial_runs(ValidSlots(info));
    softmax_.template exponentiate<kEarlyColumns, kKeys / 8>(scores, scale, added);
    wait_for_value_product(weights);
    pipelines_.try_wait_for_both();
    Product::pack(weights, scores);
    bool lane_maxima_hold;
    if constexpr (Product::kFloat8)
      lane_maxima_hold = Product::sums_fit(added[0]);
    else
      lane_maxima_hold = Product::kChecksWeights
                             ? Product::are_at_most(weights, softmax_.kMaxLaneSum)
                             : softmax_.weights_fit(added);
    const bool maxima_hold = !vote_sync_any(!lane_maxima_hold);
    if constexpr (Product::kFloat8)
      add_sums(added[0], maxima_hold);
    else if (maxima_hold)
      softmax_.add(added);
    totals_.finish_block(acc_o_);  // a branch: all other work of the step comes before it
    return maxima_hold;
  }

  // Adds a block's sums of weights unless the block is computed again. A sum that is NaN is always
  // added. A warp that computes scores again takes a NaN of a key for a number, because it widens
  // keys without a test for NaN.
  LAZYROPE_DEVICE void add_sums(const float (&added)[2], bool maxima_hold) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (maxima_hold || added[h] != added[h]) softmax_.sum[0][h] += added[h];
  }

  struct NoRows {};
  // Returns where the lane stores its rows' terms of page masses.
  LAZYROPE_DEVICE auto page_mass_rows(WorkTilePtr work_tile) const {
    if constexpr (Spec::kMeasuresPageMass)
      return PageMass<Spec>(params_.page_mass)
          .template rows_of<1>(work_tile.rows(), first_row(), work_tile.extent().num_rows);
    else
      return NoRows{};
  }
  // Issues the products that add up the weights of each run.
  LAZYROPE_DEVICE void add_up_runs(RunSums& sums, const OperandA (&weights)[kWeights]) const {
    if constexpr (kAddsUpRuns)
      Product::template add_up_runs<kKeys>(sums.sums, weights,
                                           [&](int run) { return memory_.run_selector(run); });
  }
  // Stores their results, when they have completed.
  template <class MassRows>
  LAZYROPE_DEVICE void store_run_sums(RunSums& sums, const MassRows& rows) const {
    if constexpr (kAddsUpRuns) {
      sums.sums.pin();
      PageMass<Spec>(params_.page_mass).store_sums(sums.sums, softmax_, rows, sums.runs);
    }
  }
  // Stores the weights of each run of a block. If the block's weights are computed again, these
  // replace the ones before.
  template <class MassRows>
  LAZYROPE_DEVICE void store_page_mass(const Scores& weights, const MassRows& rows,
                                       const Table& table, int32 block,
                                       const BlockInfo& info) const {
    if constexpr (Spec::kMeasuresPageMass && !kAddsUpRuns)
      PageMass<Spec>(params_.page_mass)
          .store_rows(weights, softmax_, rows,
                      {table.first_run(block), runs_before<kKeys>(info.end)});
  }

  // Issues the value product, and with `sums` the sums of the same weights.
  template <class... Sums>
  LAZYROPE_DEVICE void multiply_values(const OperandA (&weights)[kWeights], SharedPtr values,
                                       Sums&... sums) {
    wgmma_fence();
    (add_up_runs(sums, weights), ...);
    Product::template multiply_weight_value<kKeys>(acc_o_, weights, values, memory_.ones());
    wgmma_commit_group();
  }

  LAZYROPE_DEVICE void wait_for_value_product(OperandA (&weights)[kWeights]) {
    wgmma_wait_group<0>();
    acc_o_.pin();
#pragma unroll
    for (int i = 0; i < kWeights; ++i) weights[i].pin();
    pipelines_.release_values();
  }

  // Returns the factor from scores to logits in log2 units, as far as queries do not include it.
  LAZYROPE_DEVICE auto score_scale() const {
    if constexpr (Memory::kScalesQueries)
      return UniformScale{1.0f};
    else if constexpr (Product::kFloat8)
      return query_scales_;
    else
      return scale_of_rows<Spec, Scores>(params_.scale_log2 * key_scale_,
                                         memory_.positions(stage_) + first_row() * 4);
  }

  // Caps scores, adds the biases of their keys if products have not, masks them, and with kShifts
  // subtracts the known maxima. Returns the factor that is left. Most blocks need neither mask nor
  // shift, so one branch tests for both.
  template <bool kShifts = false>
  LAZYROPE_DEVICE auto prepare_scores(Scores& scores, PositionRange queries,
                                      const BlockInfo& info) const {
    const auto scale = key_biases_.add(scores, apply_softcap<Spec>(scores, score_scale()));
    const bool masks = hides_keys<Mask, kKeys>(queries, info);
    const bool shifts = kShifts && softmax_.needs_shift();
    if (masks || shifts) {
      const SharedPtr positions = memory_.positions(stage_) + first_row() * 4;
      if (masks) mask_scores<Mask>(scores, positions, info.position, info.begin, info.end);
      if (shifts) softmax_.subtract_maxima(scores);
    }
    return scale;
  }

  LAZYROPE_DEVICE void store_result(WorkTilePtr work_tile) const {
    const int32 num_rows = work_tile.extent().num_rows;
    const Result result(params_, work_tile);
    if (!result.is_unsplit())
      write_partial(result.partial(), num_rows);
    else if constexpr (Spec::kIsShared)
      write_partial(result.output(), num_rows);
    else
      write_output(result.output(), num_rows);
    result.finish(work_tile.is_last(), memory_.at + Memory::kFlags);
  }

  // These return values of one of the lane's two rows. One instance of the code writes both rows,
  // and registers cannot be indexed at run time.
  LAZYROPE_DEVICE float column(int32 h, int n, int i) const {
    return h == 0 ? acc_o_[4 * n + i] : acc_o_[4 * n + 2 + i];
  }
  LAZYROPE_DEVICE RowStats stats(int32 h) const {
    return h == 0 ? RowStats{softmax_.maximum[0][0], softmax_.sum[0][0]}
                  : RowStats{softmax_.maximum[0][1], softmax_.sum[0][1]};
  }

  // Returns the lane's pairs of columns of one of its rows, in kOctets octets of columns from
  // `octet` on.
  template <int kOctets>
  LAZYROPE_DEVICE RowQuads<(kOctets + 1) / 2> lane_columns(int32 h, int octet) const {
    RowQuads<(kOctets + 1) / 2> columns;
    columns.stats = stats(h);
#pragma unroll
    for (int i = 0; i < 2 * kOctets; ++i) columns.value[i] = column(h, octet + i / 2, i % 2);
    return columns;
  }

  // Four lanes exchange columns, so that each has eight consecutive ones. The exchange is outside
  // all branches.
  LAZYROPE_DEVICE void write_output(const OutputRows<Spec>& output, int32 num_rows) const {
    constexpr int kOctets = 4;
    constexpr int kWholeOctets = kHeadDim / 32 * kOctets;
    const int32 lane = lane_index();
#pragma unroll 1
    for (int32 h = 0; h < 2; ++h) {
      const int32 row = first_row() + row_of(lane, 2 * h);
      const bool exists = row < num_rows;
      uint8* slot = nullptr;
      if constexpr (Spec::kDefers) {
        if (exists) slot = output.slot_row(0, row);
      }
      const bool writes = exists && slot == nullptr;
      uint8* to = output.row_address(0, row) + lane % 4 * 16;
#pragma unroll
      for (int octet = 0; octet < kWholeOctets; octet += kOctets) {
        const auto columns = lane_columns<kOctets>(h, octet);
        if constexpr (Spec::kDefers) {
          if (slot != nullptr)
            write_slot_pairs<kHeadDim, kOctets>(slot, octet * 8 + lane % 4 * 2, columns);
        }
        write_columns(to + octet * 16, columns, output.scale_of(0, columns.stats.sum), writes);
        if (octet == 0 && writes && lane % 4 == 0) output.write_lse(0, row, columns.stats);
      }
      if constexpr (kHeadDim % 32 != 0)
        write_last_octets(to - lane % 4 * 12 + kWholeOctets * 16, slot, h, output, writes);
    }
  }
  template <int kQuads>
  LAZYROPE_DEVICE static void write_columns(uint8* to, const RowQuads<kQuads>& columns, float scale,
                                            bool writes) {
#pragma unroll
    for (int i = 0; i < kQuads / 2; ++i) {
      Chunk chunk;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair)
        chunk.word[pair] = Spec::Element::pack(columns.value[8 * i + 2 * pair] * scale,
                                               columns.value[8 * i + 2 * pair + 1] * scale);
      transpose(chunk.word, 1);
      if (writes) st_global(reinterpret_cast<Chunk*>(to + i * 64), chunk);
    }
  }
  // Writes the last one or two octets of columns, where four lanes have too few to exchange. Each
  // lane writes its own pairs, the first of them to `to`.
  LAZYROPE_DEVICE void write_last_octets(uint8* to, uint8* slot, int32 h,
                                         const OutputRows<Spec>& output, bool writes) const {
    constexpr int kFirst = kHeadDim / 32 * 4;
    constexpr int kOctets = kHeadDim / 8 - kFirst;
    static_assert(kOctets <= 2);
    const auto columns = lane_columns<kOctets>(h, kFirst);
    if constexpr (Spec::kDefers) {
      if (slot != nullptr)
        write_slot_pairs<kHeadDim, kOctets>(slot, kFirst * 8 + lane_index() % 4 * 2, columns);
    }
    const float scale = output.scale_of(0, columns.stats.sum);
#pragma unroll
    for (int octet = 0; octet < kOctets; ++octet)
      if (writes)
        st_global(reinterpret_cast<uint32*>(to + octet * 16),
                  Spec::Element::pack(columns.value[2 * octet] * scale,
                                      columns.value[2 * octet + 1] * scale));
  }

  template <class Rows>
  LAZYROPE_DEVICE void write_partial(const Rows& rows, int32 num_rows) const {
    const int32 lane = lane_index();
#pragma unroll 1
    for (int32 h = 0; h < 2; ++h) {
      const int32 row = first_row() + row_of(lane, 2 * h);
      if (row < num_rows) rows.write_pairs(row, lane % 4, lane_columns<kHeadDim / 8>(h, 0));
    }
  }

  const typename Memory::Params& launch_;
  const AttendParams& params_;
  Memory memory_;
  int32 stage_ = 0;         // stage of the work tile
  float key_scale_ = 1.0f;  // scale of the work tile's keys
  ConsumerPipelines<Memory, Queries> pipelines_;
  MmaOrder<Memory::kMmaOrderBarrier> mma_order_;
  Rows acc_o_;
  Totals totals_;
  RowScales<1> query_scales_;  // set with 8-bit queries alone
  SoftmaxState<1, RowLanes, Memory::kScalesQueries, typename Product::WeightRange> softmax_;
  KeyBiases key_biases_;
};

}  // namespace lazyrope
