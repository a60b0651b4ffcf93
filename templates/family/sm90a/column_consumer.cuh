// A consumer warpgroup of the decode kernel: products, softmax and results of a work tile's rows,
// for some or all of its KV heads.
//
// Products are transposed: scores^T = keys x queries^T and rows^T += values^T x weights^T. The 64
// rows that wgmma requires are 64 keys, and then 64 columns of values. Its columns are the query
// rows. So a few query rows cost no more than they need. The scores of a block are issued together
// with the value product of the block before.
//
// If a work tile has several KV heads, a key's row in shared memory has the columns of all heads,
// one head after another. Loads are those of a tile with longer rows, and products are separate for
// each head. With kGroups above 1 each warpgroup has its own heads.
//
// Reads: rotated queries [kRows, head_dim], stages of keys and of values [kKeys, kHeads *
// head_dim], row positions and the block table, in shared memory.
// Writes: weights [kKeys, kRows], row maxima and sums in its scratch memory; out and lse of the
// rows, or their partial result (ops/work_tile_result.cuh).
//
// Both stages of a block of entries (abi/states.h) have keys. Each lane compares their scores with
// its best ones (LaneScan, ops/states.cuh), and no values are multiplied. The warps find each row's
// best entry at the end of a memory.
//
// Role: each of the kGroups consumer warpgroups; each of its four warps has 16 of the keys. The
// warps synchronize by Team::sync(): named barrier 2, or 3 + group if kGroups is above 1. It
// protects the flags of any_in_warpgroup(), maxima, weights, the row statistics and best entries.
// clear_partial_runs() and WorkTileResult::finish() synchronize all consumers by named barrier 2.
#pragma once

#include "family/sm90a/column_entries.cuh"
#include "family/sm90a/consumer_pipelines.cuh"
#include "isa/bulk_copy.cuh"
#include "ops/exchange.cuh"
#include "ops/key_bias.cuh"
#include "ops/page_mass.cuh"
#include "ops/sinks.cuh"
#include "ops/softcap.cuh"
#include "ops/softmax.cuh"
#include "ops/states.cuh"
#include "ops/temperature.cuh"
#include "ops/work_tile_result.cuh"

namespace lazyrope {

template <class Spec, class Memory>
class ColumnConsumer {
  using Team = typename ColumnTeam<Memory>::Type;
  using Table = typename Memory::Table;
  using Mask = typename Spec::Mask;
  using Product = typename Spec::Product;
  static constexpr int kKeys = Memory::kKeys;
  // The KV heads and the rows of the warpgroup.
  static constexpr int kHeads = Memory::kHeads / Memory::kGroups;
  static constexpr int kRows = Memory::kRows / Memory::kGroups;
  static constexpr int kRowTiles = kRows / 8;
  static constexpr int kWarps = Memory::kGroupWarps;
  static constexpr int kDimTiles = Product::kDimTiles;
  static constexpr ColumnScratchLayout kScratch =
      column_scratch_layout(kRows, Product::kWeightBytes);
  static_assert(Memory::kLayout.entries - Memory::kLayout.consumer_scratch ==
                Memory::kGroups * kScratch.bytes);
  using Accumulator = typename Product::Accumulator;
  using Factors = float[kRowTiles][2];
  static constexpr bool kHasFewSlices = Memory::kRows * num_slices(Spec::kHeadDim) <= 128;
  static constexpr SliceWidth kSliceWidth = kHasFewSlices ? kNarrowSlices : kWideSlices;
  using Result = WorkTileResult<Spec, typename Memory::Consumers, kSliceWidth>;
  using KeyBiases =
      typename SelectType<Spec::kHasKeyBias,
                          ColumnKeyBias<ColumnLanes, kKeys, kHeads, Memory::kHeadRows>,
                          NoKeyBias>::Type;
  static_assert(Team::size() == kWarpgroupThreads && kKeys == Product::kKeys);

 public:
  LAZYROPE_DEVICE ColumnConsumer(const AttendParams& params, Memory memory)
      : params_(params),
        memory_(memory),
        scratch_(memory.consumer_scratch() + group() * kScratch.bytes),
        pipelines_(params, memory) {}

  LAZYROPE_DEVICE void run() {
    for_each_work_tile(memory_, [&](WorkTilePtr work_tile, int32 stage) {
      start(work_tile);
      const int32 num_blocks = work_tile.extent().num_blocks;
      int32 last = 0;
      if (num_blocks > 0)
        last = attend(work_tile, stage);
      else
        store_empty_stats();
      const Result result(params_, work_tile);
      write_all(result, work_tile.extent().num_rows);
      // The warp writes its results before it releases the queries and the window, because other
      // CTAs may wait for the results.
      if (num_blocks > 0) pipelines_.finish_work_tile(last);
      if constexpr (Memory::kHasStates) {
        if (!result.is_unsplit()) entries().prefetch_states(params_, work_tile);
      }
      result.finish(work_tile.is_last(), memory_.at + Memory::kFlags);
    });
  }

 private:
  LAZYROPE_DEVICE static int32 group() { return ColumnTeam<Memory>::group(); }
  LAZYROPE_DEVICE static int32 first_head() { return group() * kHeads; }

  LAZYROPE_DEVICE void start(WorkTilePtr work_tile) {
#pragma unroll
    for (int tile = 0; tile < kDimTiles; ++tile)
#pragma unroll
      for (int i = 0; i < Accumulator::kCount; ++i) acc_o_[tile][i] = 0.0f;
    softmax_.reset();
    if (Spec::kSinks && work_tile.split().index == 0)
      add_sinks<Spec, kHeads>(softmax_, params_.sinks, rows_of_head(work_tile.rows(), first_head()),
                              0, work_tile.extent().num_rows);
    if constexpr (Memory::kHasStates) entries().reset();
  }
  // Returns the best entries of the warpgroup's rows.
  LAZYROPE_DEVICE auto entries() const { return ColumnEntries<Spec, Memory>(memory_); }
  LAZYROPE_DEVICE RowEntries<Spec::kMemories> entries_of_row(int32 row) const {
    if constexpr (Memory::kHasStates)
      return load_entries<Spec::kMemories>(entries().rows(), row);
    else
      return {};
  }

  // Attends to all blocks of the work tile, at least one. Returns the number of the last one.
  LAZYROPE_DEVICE int32 attend(WorkTilePtr work_tile, int32 stage) {
    const Table table = memory_.table(params_.step, work_tile);
    const WorkTileExtent extent = work_tile.extent();
    QueryPositions query_positions = query_positions_of(extent, stage);
    Accumulator scores;
    int32 block = pipelines_.begin(stage);
    const int32 last = block + extent.num_blocks - 1;
    BlockInfo info = table.info(block);
    bool is_scanned = false;  // scan_entries() computes the block's scores
    if constexpr (Memory::kHasStates) {
      const int32 code = warp_uniform(table.memory_code(block));
      is_scanned = is_memory(code) && !has_cells(code);
    }
    if (!is_scanned) {
      pipelines_.wait_for_keys();
      multiply_keys(scores);
      wgmma_commit_group();
      load_key_biases();
      wait_for_products(scores);
      pipelines_.release_keys();
    } else {
      clear(scores);
      info.end = no_scores();
    }
#pragma unroll 1
    while (true) {
      if constexpr (Memory::kHasStates) {
        const int32 code = warp_uniform(table.memory_code(block));
        if (is_memory(code)) {
          if (has_cells(code)) {
            look_up_cells(work_tile, info, code);
          } else if (scan_entries(scores, work_tile, table, block, last, info, code)) {
            continue;
          }
          if (block == last) {
            store_row_stats();
            break;
          }
          enter_block(table, block, last, info);
          pipelines_.wait_for_keys();
          multiply(scores, pipelines_.keys());
          pipelines_.release_keys();
          continue;
        }
      }
      // Look-ups leave no registers for the positions.
      if constexpr (Memory::kHasStates)
        query_positions = query_positions_of(work_tile.extent(), stage);
      compute_weights(scores, query_positions, info);
      if constexpr (Spec::kMeasuresPageMass) store_page_mass(scores, work_tile, table, block, info);
      // The loop also multiplies the last block's values, because the instruction cache has the
      // loop's code.
      const bool is_last = block == last;
      const ValidSlots slots(info);
      if (!is_last) {
        pipelines_.detect_document_change(block, last, info);
        pipelines_.advance_to(++block);
        pipelines_.next_document();
        info = table.info(block);
        pipelines_.wait_for_keys();
      }
      const SharedPtr values = pipelines_.wait_for_values(slots);
      if (!is_last) multiply_keys(scores);
      multiply_values(values);
      wgmma_commit_group();
      if (!is_last) load_key_biases();
      if (is_last) store_row_stats();
      wait_for_products(scores);
      if (!is_last) pipelines_.release_keys();
      pipelines_.release_values();
      if (is_last) break;
    }
    return last;
  }

  // Goes on to the block after `block`.
  LAZYROPE_DEVICE void enter_block(const Table& table, int32& block, int32 last, BlockInfo& info) {
    pipelines_.detect_document_change(block, last, info);
    pipelines_.advance_to(++block);
    pipelines_.next_document();
    info = table.info(block);
  }
  // Computes the scores of keys, which are in a stage of keys or, of the second half of a block of
  // entries, in one of values.
  LAZYROPE_DEVICE void multiply(Accumulator& scores, SharedPtr keys) {
    wgmma_fence();
    Product::multiply_query_key(scores, pipelines_.queries() + group() * Product::kQueryBytes,
                                keys + group() * Product::kColumnBytes);
    wgmma_commit_group();
    wait_for_products(scores);
  }
  LAZYROPE_DEVICE static void clear(Accumulator& scores) {
    using Access = TileAccess<Accumulator>;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) Access::at(scores, m, 0, i) = 0.0f;
  }

  // Finds the best entries of a memory among those from `block` on, up to the next segment that has
  // another code. `scores` are those of the block's first half. Returns true if there is such a
  // segment: `block` is then its first one, and `scores` are those of its keys. Otherwise `block`
  // is the last one.
  //
  // At a work tile's first block there are no scores, and info.end is no_scores(). The first
  // iteration then compares no entry. It executes the code of the others while the first keys are
  // on their way, and the instruction cache then has it.
  LAZYROPE_DEVICE bool scan_entries(Accumulator& scores, WorkTilePtr work_tile, const Table& table,
                                    int32& block, int32 last, BlockInfo& info, int32 code) {
    LaneScan<Spec::kGroupSize, Accumulator> found;
    const int32 first_row = work_tile.rows().first_row;
    const int32 bits = slot_bits(params_.entry_lse.page_size);
    bool is_second = info.end == no_scores();  // half of the block
#pragma unroll 1
    while (true) {
      const bool has_scores = info.end != no_scores();
      found.scan(scores, entry_tile(info, code, is_second ? kKeys : 0),
                 table.location(block, own_slot(is_second), bits),
                 [&](int32 row) { return first_row + row % Memory::kHeadRows; });
      const bool ends_block = is_second && has_scores;
      const bool is_last = ends_block && block == last;
      if (ends_block && !is_last) enter_block(table, block, last, info);
      const bool ends_memory =
          ends_block && (is_last || warp_uniform(table.memory_code(block) != code));
      if (ends_memory || !has_scores) entries().improve_by(found, memory_index(code));
      if (is_last) return false;
      is_second = !is_second;
      if (is_second)
        pipelines_.wait_for_values();
      else
        pipelines_.wait_for_keys();
      multiply(scores, is_second ? pipelines_.values() : pipelines_.keys());
      if (is_second)
        pipelines_.release_values();
      else
        pipelines_.release_keys();
      if (ends_memory) return true;
      if (!has_scores) info = table.info(block);
    }
  }
  static constexpr int32 no_scores() { return 0; }  // BlockInfo::end of a block without entries
  // Returns the slot of the lane's first key in one half of a block.
  LAZYROPE_DEVICE static int32 own_slot(bool is_second) {
    return (is_second ? kKeys : 0) + ColumnLanes::first_column();
  }

  // Looks up the entries of a segment with cells. Nothing needs the values of its block.
  LAZYROPE_DEVICE void look_up_cells(WorkTilePtr work_tile, const BlockInfo& info, int32 code) {
    ColumnEntries<Spec, Memory>::look_up_cells(
        params_, memory_, work_tile, pipelines_.queries() + group() * Product::kQueryBytes,
        info.position, code);
    pipelines_.wait_for_values();
    pipelines_.release_values();
  }

  LAZYROPE_DEVICE void multiply_keys(Accumulator& scores) const {
    wgmma_fence();
    Product::multiply_query_key(scores, pipelines_.queries() + group() * Product::kQueryBytes,
                                pipelines_.keys() + group() * Product::kColumnBytes);
  }

  // Loads the biases of the block whose keys are being multiplied, before the keys are released.
  LAZYROPE_DEVICE void load_key_biases() {
    if constexpr (Spec::kHasKeyBias)
      key_biases_.load(pipelines_.key_biases() + first_head() * kKeys * kBiasBytes);
  }

  LAZYROPE_DEVICE void multiply_values(SharedPtr values) {
    wgmma_fence();
    Product::multiply_weight_value(acc_o_, scratch_, values + group() * Product::kColumnBytes);
  }

  // Waits for all products. There is time for that, because memory bandwidth is the limit.
  LAZYROPE_DEVICE void wait_for_products(Accumulator& scores) {
    wgmma_wait_group<0>();
    scores.pin();
#pragma unroll
    for (int tile = 0; tile < kDimTiles; ++tile) acc_o_[tile].pin();
  }

  LAZYROPE_DEVICE void rescale(const Factors& factor) {
#pragma unroll
    for (int tile = 0; tile < kDimTiles; ++tile) softmax_.rescale(acc_o_[tile], factor);
  }

  // No product reads the previous weights: each warp has waited for its products, and
  // any_in_warpgroup() has synchronized the warps since.
  LAZYROPE_DEVICE void store_weights(const Accumulator& scores) const {
    Product::store(scratch_, scores);
    fence_proxy_async();
  }

  struct QueryPositions {
    PositionRange queries;
    SharedPtr positions;
  };
  LAZYROPE_DEVICE QueryPositions query_positions_of(const WorkTileExtent& extent,
                                                    int32 stage) const {
    return {{extent.first_position, extent.last_position},
            memory_.positions(stage) + group() * kRows * 4};
  }

  // All four warps compute the weights together, because each product needs those of all keys.
  LAZYROPE_DEVICE void compute_weights(Accumulator& scores, const QueryPositions& query_positions,
                                       const BlockInfo& info) {
    Factors factor;
    if (softmax_step(scores, query_positions, info, factor)) rescale(factor);
    store_weights(scores);
    Team::sync();
  }

  // Stores the weights of each run of a block. Each warp has those of one run.
  LAZYROPE_DEVICE void store_page_mass(const Accumulator& weights, WorkTilePtr work_tile,
                                       const Table& table, int32 block,
                                       const BlockInfo& info) const {
    PageMass<Spec>(params_.page_mass)
        .template store_columns<Memory::kHeadRows>(
            weights, softmax_, rows_of_head(work_tile.rows(), first_head()),
            work_tile.extent().num_rows, table.first_run(block) + Team::warp(),
            Team::warp() < runs_before<kKeys>(info.end));
  }

  // Computes weights from scores. Returns true if the rows must be multiplied by `factor`. This is
  // also so for the work tile's first block, which does not need it. The instruction cache then has
  // the code for later blocks.
  LAZYROPE_DEVICE bool softmax_step(Accumulator& scores, const QueryPositions& query_positions,
                                    const BlockInfo& info, Factors& factor) {
    const auto scale = prepare_scores(scores, query_positions, info);
    Factors top;
    const bool is_raised = any_in_warpgroup(softmax_.exceeds(scores, scale, top));
    if (is_raised) raise_to(top, scale, factor);
    softmax_.exponentiate(scores, scale);
    return is_raised;
  }

  // Caps scores, adds the biases of their keys, and masks them. Returns the factor that is left.
  LAZYROPE_DEVICE auto prepare_scores(Accumulator& scores, const QueryPositions& query_positions,
                                      const BlockInfo& info) const {
    const auto capped = apply_softcap<Spec>(
        scores, scale_of_rows<Spec, Accumulator>(params_.scale_log2, query_positions.positions));
    const auto scale = key_biases_.add(scores, capped);
    if (hides_keys<Mask, kKeys>(query_positions.queries, info))
      mask_scores<Mask>(scores, query_positions.positions, info.position, info.begin, info.end);
    return scale;
  }

  // Returns true if `value` is true in any lane of the warpgroup.
  LAZYROPE_DEVICE bool any_in_warpgroup(bool value) const {
    const bool any_in_warp = vote_sync_any(value);
    if (lane_index() == 0)
      st_shared(scratch_ + (kScratch.flags + Team::warp() * 4), any_in_warp ? 1u : 0u);
    Team::sync();
    const Chunk flags = ld_shared<Chunk>(scratch_ + kScratch.flags);
    return (flags.word[0] | flags.word[1] | flags.word[2] | flags.word[3]) != 0;
  }

  // Does what softmax_.raise_to() does, for all warps. `top` is each lane's greatest score of each
  // row.
  template <class Scale>
  LAZYROPE_DEVICE void raise_to(Factors& top, const Scale& scale, Factors& factor) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) top[m][h] = ColumnLanes::maximum(top[m][h]);
    store_warp_values(kScratch.warp_maxima, top);
    Team::sync();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const WarpValues values = load_warp_values(kScratch.warp_maxima, ColumnLanes::row(m, h));
        top[m][h] = max_f32(max_f32(values.warp[0], values.warp[1]),
                            max_f32(values.warp[2], values.warp[3]));
      }
    softmax_.raise_to(top, scale, factor);
  }

  // The four warps' values for a row.
  struct alignas(16) WarpValues {
    float warp[4];
  };
  LAZYROPE_DEVICE void store_warp_values(int where, const Factors& values) const {
    if (lane_index() >= 4) return;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        st_shared(scratch_ + (where + ColumnLanes::row(m, h) * 16 + Team::warp() * 4),
                  values[m][h]);
  }
  LAZYROPE_DEVICE WarpValues load_warp_values(int where, int32 row) const {
    return ld_shared<WarpValues>(scratch_ + (where + row * 16));
  }

  // Writes the results, after the row statistics have been stored. It is a loop because the
  // instruction cache has the code from the second iteration on.
  LAZYROPE_DEVICE void write_all(const Result& result, int32 num_rows) const {
    Team::sync();
#pragma unroll 1
    for (int32 m = 0; m < kRowTiles; ++m)
      if (m * 8 % Memory::kHeadRows < num_rows) write(result, num_rows, m);
  }

  // Stores the statistics while the last products run. All warps have read the previous ones,
  // because they have synchronized since.
  LAZYROPE_DEVICE void store_row_stats() const {
    Factors sums;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) sums[m][h] = ColumnLanes::sum(softmax_.sum[m][h]);
    store_warp_values(kScratch.warp_sums, sums);
    if (!ColumnLanes::is_first()) return;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        st_shared(scratch_ + (kScratch.row_maxima + ColumnLanes::row(m, h) * 4),
                  softmax_.maximum[m][h]);
  }

  // Stores the statistics of a work tile whose rows see no key.
  LAZYROPE_DEVICE void store_empty_stats() const {
    Team::sync();
    store_row_stats();
  }

  // Writes the results of row tile m. A lane has one column of four rows, and exchanges them for
  // four columns of one row.
  LAZYROPE_DEVICE void write(const Result& result, int32 num_rows, int32 m) const {
    const int32 head = m * 8 / Memory::kHeadRows;
    RowQuad partial[kDimTiles];
#pragma unroll
    for (int tile = 0; tile < kDimTiles; ++tile) {
      select_row_tile(m, tile, partial[tile].value);
      transpose(partial[tile].value, 4);
    }
    const int32 exchange_lane = lane_index() / 4 % 4;
    const int32 row = ColumnLanes::row(m, exchange_lane / 2);
    const int32 row_of_head = row - head * Memory::kHeadRows;
    if (row_of_head >= num_rows) return;
    const WarpValues sums = load_warp_values(kScratch.warp_sums, row);
    const RowStats stats = {ld_shared<float>(scratch_ + (kScratch.row_maxima + row * 4)),
                            sums.warp[0] + sums.warp[1] + (sums.warp[2] + sums.warp[3])};
    const int32 quad = Team::warp() * 4 + exchange_lane % 2 * 2 + lane_index() / 16;
#pragma unroll
    for (int tile = 0; tile < kDimTiles; ++tile) partial[tile].stats = stats;
    result.template write<16>(first_head() + head, row_of_head, quad, partial, entries_of_row(row));
  }

  // Selects the lane's values of row tile m. The compiler does not know m, and registers cannot be
  // indexed at run time.
  LAZYROPE_DEVICE void select_row_tile(int32 m, int tile, float (&value)[4]) const {
#pragma unroll
    for (int each = 0; each < kRowTiles; ++each)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (each == 0 || m == each)
          value[i] = TileAccess<Accumulator>::at(acc_o_[tile], each, 0, i);
  }

  const AttendParams& params_;
  Memory memory_;
  SharedPtr scratch_;
  ConsumerPipelines<Memory, RotatedQueries<Memory>> pipelines_;
  Accumulator acc_o_[kDimTiles];
  SoftmaxState<kRowTiles, ColumnLanes> softmax_;
  KeyBiases key_biases_;
};

}  // namespace lazyrope
