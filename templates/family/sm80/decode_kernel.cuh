// Family sm80, few rows: attention of decode, by mma.sync, ldmatrix and cp.async (sm_80 and every
// later GPU).
//
// A work tile has up to kWarpM packed query rows and a range of KV blocks of kWarpN keys. Its rows
// are those of one token or a few, for one or several KV heads. The kernel computes out =
// softmax(rotated q x keys^T) x values for each head, or a partial result if the tile has several
// KV splits. Decode is limited by memory bandwidth, so the design keeps copies in flight at all
// times.
//
// Reads: q [tokens, heads, head_dim], the pools of keys and values [pages, slots, kv_heads,
// head_dim] by strides, the step's work tiles, segments and positions (abi/attend.h), and the bias
// of keys if the spec has one (abi/key_bias.h).
// Writes: out, shaped like q, and lse [tokens, heads], or rows of partial results [kv_heads of the
// work tile x rows, head_dim] (abi/step.h).
//
// All kWarpsN warps have the same role. Warp w serves KV head w % num_heads of the work tile. The
// warps of one head divide its KV blocks (choose_blocks()). Each warp copies its blocks into its
// own TileRing by its own BlockTable, and waits for the other warps only at the start and the end
// of a work tile. finish() combines the partial results of the warps of a head in shared memory.
// The queries and the first blocks of the next work tile are issued before the results of the
// present one are written.
//
// Each warp has its rotated queries in shared memory. At a block with another base it rotates the
// original queries again, in fp32 with one rounding. If the pool holds raw keys, a warp rotates
// each tile of keys in place instead, and its queries once.
//
// With attention states (ops/states.cuh), both tiles of a block of entries are keys. Their scores
// are compared with the best of each row, and no values are multiplied.
//
// | barrier                  | who arrives | who      | what it protects                          |
// |                          |             | waits    |                                           |
// |--------------------------|-------------|----------|-------------------------------------------|
// | constructor              | all threads | the CTA  | the first work tile                       |
// | fill()                   | all threads | the CTA  | staged results, before ring tiles replace |
// |                          |             |          | them                                      |
// | wait_for_queries()       | all threads | the CTA  | original queries, row positions, the next |
// |                          |             |          | work tile: copies of all threads          |
// | TileRing::wait()         | 32 lanes    | the warp | the ring's next tile, and the biases of   |
// |                          |             |          | its keys; the tile before, its biases and |
// |                          |             |          | rotated queries, until they have been     |
// |                          |             |          | read                                      |
// | begin_work_tile(),       | 32 lanes    | the warp | new entries of the block table            |
// | store_pages()            |             |          |                                           |
// | rotate_queries()         | 32 lanes    | the warp | rotated queries                           |
// | rotate_if_raw()          | 32 lanes    | the warp | rotated keys                              |
// | look_up_cells()          | 32 lanes    | the warp | rotated queries, until they have been     |
// |                          |             |          | read                                      |
// | finish(), row tile 0     | 32 lanes    | the warp | the last tiles, before results replace    |
// |                          |             |          | them                                      |
// | finish(), other row      | all threads | the CTA  | staged rows, until they have been read    |
// | tiles                    |             |          |                                           |
// | finish(), after staging  | all threads | the CTA  | staged rows; the work tile and its        |
// |                          |             |          | original queries, before they are         |
// |                          |             |          | replaced                                  |
// | WorkTileResult::finish() | all threads | the CTA  | see ops/combine_scheduler.cuh             |
//
// Barriers of the CTA are bar.sync 0 of kWarpsN * 32 threads; those of a warp are bar.warp.sync.
#pragma once

#include "abi/shared_layout.h"
#include "ops/cells.cuh"
#include "ops/key_bias.cuh"
#include "ops/mask_scores.cuh"
#include "ops/page_mass.cuh"
#include "ops/rotate.cuh"
#include "ops/rotate_keys.cuh"
#include "ops/sinks.cuh"
#include "ops/softcap.cuh"
#include "ops/softmax.cuh"
#include "ops/states.cuh"
#include "ops/temperature.cuh"
#include "ops/work_tile_result.cuh"
#include "pipeline/kv_ring.cuh"
#include "tile/query_fragments.cuh"

namespace lazyrope {

template <class Spec, class Shape>
class Sm80Decode {
  static constexpr int kHeadDim = Spec::kHeadDim;
  static constexpr int kWarps = Shape::kWarpsN;
  static constexpr int kRows = Shape::kWarpM;  // rows of all heads together
  static constexpr int kKeys = Shape::kWarpN;
  static constexpr int kTiles = Shape::kStages;
  static constexpr int kStripe = 4;
  static_assert(Shape::kWarpsM == 1 && Shape::kMmaN == kKeys);

  static constexpr int kRowTiles = kRows / 16;
  static constexpr int kKeyTiles = kKeys / 8;

  using Mask = typename Spec::Mask;
  using Product = typename Spec::Product;
  using QueryTile = typename Product::QueryTile;
  using KvTile = typename Product::KvTile;
  // A lane has its fragments of the rotated queries in registers if they take at most 32. It also
  // has the frequencies of the rotation in registers if the accumulators leave enough
  // (kHasRegisters).
  using Queries = typename SelectQueries<Product, kRowTiles, 32>::Type;
  static constexpr bool kHasRegisters = kRowTiles * kHeadDim <= 128;
  static_assert(!Product::kWidens);
  using Ring = TileRing<typename Product::StoredTile, kKeys, kTiles>;
  static constexpr bool kHasStates = Spec::kMemories > 0;
  using Table = BlockTable<Mask, kKeys, 2, Spec::kMeasuresPageMass, kHasStates>;
  using Half = HalfBlocks<Table, kKeys>;
  using Entries = RowEntries<Spec::kMemories>;
  using Record = PartialRecord<kHeadDim>;
  // resolve_ahead() looks up a window when a quarter of the previous window has been read. The ring
  // must not issue blocks of the window before then.
  static_assert(Table::kWindow / 4 * 3 >= (kTiles + 1) / 2);

  // A warp's results are staged in the last tiles of its ring, after the tiles that the first
  // copies of the next work tile use.
  static constexpr Sm80DecodeLayout kLayout =
      layout_of(Sm80DecodeShape{.head_dim = kHeadDim,
                                .warps_n = kWarps,
                                .block_m = kRows,
                                .warp_n = kKeys,
                                .stages = kTiles,
                                .kv_bytes = Product::StoredTile::kBytesPerElement,
                                .key_bias = Spec::kHasKeyBias,
                                .states = kHasStates});
  static constexpr int kTileBytes = Ring::kBytes / kTiles;
  static constexpr int kStagedTiles = staged_tiles(kHeadDim, kTileBytes);
  static constexpr int kTilesAhead = larger(kTiles - larger(kStagedTiles, 1), 0);
  static constexpr int kQueryBytes = kRows * QueryTile::kRowBytes;
  static constexpr int kWorkTileBytes = static_cast<int>(sizeof(WorkTile));
  static_assert(Table::kBytes == kLayout.table_bytes);
  using KeyBiases =
      typename SelectType<Spec::kHasKeyBias, KeyBiasRing<kKeys, kTiles>, NoKeyBias>::Type;

 public:
  using Params = typename SelectParams<AttendParams, Spec::kHasKeyBias>::Type;

  // All threads of the CTA call this. It computes the CTA's work tiles in sequence. `memory` is
  // aligned to 1024 bytes.
  LAZYROPE_DEVICE static void run(const Params& params, SharedPtr memory) {
    Sm80Decode tile(params, memory);
    if (tile.work_tile().extent().num_rows == 0) return;
    tile.begin_work_tile();
    do tile.attend();
    while (tile.finish());
  }

 private:
  LAZYROPE_DEVICE Sm80Decode(const Params& params, SharedPtr memory)
      : params_(params), memory_(memory), angles_() {
    work_tile().copy_from(params.work.work_tiles + block_index());
    bar_sync();
  }

  LAZYROPE_DEVICE WorkTilePtr work_tile() const {
    return WorkTilePtr(memory_ + (kLayout.work_tiles + current_));
  }
  LAZYROPE_DEVICE WorkTilePtr next_work_tile() const {
    return WorkTilePtr(memory_ + (kLayout.work_tiles + (kWorkTileBytes - current_)));
  }
  LAZYROPE_DEVICE SharedPtr positions() const { return memory_ + kLayout.positions; }
  LAZYROPE_DEVICE SharedPtr entries(int32 warp) const {
    return memory_ + (kLayout.entries + warp * (kRows * kRowEntryBytes));
  }
  LAZYROPE_DEVICE SharedPtr queries() const {
    return memory_ + kLayout.queries + warp_index() * kQueryBytes;
  }
  LAZYROPE_DEVICE Table table() const {
    return Table(memory_ + kLayout.tables + warp_index() * Table::kBytes, choose_blocks(),
                 params_.step, work_tile());
  }
  // Returns the warp's ring, in which `tiles` tiles have been issued.
  LAZYROPE_DEVICE Ring ring(int32 tiles) const {
    return Ring(memory_ + warp_index() * kLayout.ring_bytes, params_.pool, kv_head(), tiles);
  }
  LAZYROPE_DEVICE int32 num_rows() const { return work_tile().extent().num_rows; }
  LAZYROPE_DEVICE int32 num_heads() const { return work_tile().rows().num_heads; }
  LAZYROPE_DEVICE int32 head() const { return warp_index() % num_heads(); }
  LAZYROPE_DEVICE int32 kv_head() const { return work_tile().rows().kv_head + head(); }

  // Issues the first copies of the work tile: its first tiles, the next work tile, and the queries
  // of this one. No thread reads the previous work tile any more.
  LAZYROPE_DEVICE void begin_work_tile() {
    num_blocks_ = choose_blocks().count(work_tile().extent().num_blocks);
    if constexpr (Product::kScaled) key_scale_ = key_scale(params_.pool, kv_head());
    if constexpr (Spec::kHasKeyBias) {
      static_assert(KeyBiases::kBytes == kLayout.key_bias_bytes);
      key_biases_.prepare(memory_ + (kLayout.key_biases + warp_index() * KeyBiases::kBytes),
                          params_.key_bias, kv_head());
    }
    const Table table = this->table();
    Ring ring = this->ring(0);
    const WorkTileStart start = work_tile().start();
    num_prefetched_ = table.count_prefetched(start);
    table.write_prefetched(start, num_prefetched_);
    Pages pages = {num_prefetched_, 0};
    bar_warp_sync();
    fill_prefetched(table, ring, pages, 0, kTilesAhead);
    if (const int32 next = work_tile().keys().next; next >= 0)
      next_work_tile().copy_async(params_.work.work_tiles + next);
    copy_queries();
  }

  // Returns the blocks of this warp. A warp rotates its queries once for every segment of which it
  // has a block, so with short segments it takes stripes of kStripe consecutive blocks. The stripes
  // are aligned so that one ends with the first segment.
  LAZYROPE_DEVICE BlockChoice choose_blocks() const {
    const int32 first = warp_index() / num_heads();
    const int32 step = kWarps / num_heads();
    const int32 in_first = count_blocks<kKeys, kHasStates>(work_tile().start());
    const int32 round = kStripe * step;
    const int32 length = in_first < round && work_tile().extent().num_blocks >= round ? kStripe : 1;
    return {first, step, length, (length - in_first % length) % length};
  }

  LAZYROPE_DEVICE void attend() {
    const Table table = this->table();
    Ring ring = this->ring(smaller(kTilesAhead, 2 * num_prefetched_));
    Pages pages = fill(table, ring);
    Rotated rotated;
#pragma unroll 1
    for (int32 block = 0; block < num_blocks_; ++block) {
      resolve_ahead(table, block, pages);
      const BlockInfo info = table.info(block);
      const int32 base = query_base<Spec>(info.base);
      if (block == 0 || rotated.base != base) rotate_queries(rotated, base);
      if (block == 0) fill_up(table, ring, pages);
      if constexpr (kHasStates) {
        if (warp_uniform(is_memory(table.memory_code(block)))) {
          if (warp_uniform(has_cells(table.memory_code(block))))
            look_up_cells(table, ring, pages, block);
          else
            scan_block(table, ring, pages, block, rotated.queries);
          continue;
        }
      }
      ring.wait();
      issue(table, ring, pages, 2 * block + kTiles - 1);
      float weights[kRowTiles][kKeyTiles][4];
      softmax_step(weights, block, info, rotated.queries, keys(rotate_if_raw(ring.take(), info)));
      if constexpr (Spec::kMeasuresPageMass) {
        const PageMass<Spec> mass(params_.page_mass);
        const WorkTileRows rows = rows_of_head(work_tile().rows(), head());
        mass.store_rows(weights, softmax_, mass.template rows_of<kRowTiles>(rows, 0, num_rows()),
                        {table.first_run(block), runs_before<kKeys>(info.end)});
      }
      ring.wait();
      issue(table, ring, pages, 2 * block + kTiles);
      Product::multiply_weight_value(acc_o_, weights, values(ring.take()));
    }
    softmax_.finish();
  }

  // Rotates a tile of keys if the pool holds them raw. Returns the tile.
  LAZYROPE_DEVICE static SharedPtr rotate_if_raw(SharedPtr tile, const BlockInfo& info) {
    if constexpr (Spec::kRawKeys) {
      rotate_keys<Spec, Team<kWarpThreads>, KvTile, kKeys>(tile, info.position);
      bar_warp_sync();
    }
    return tile;
  }

  // Page numbers in flight, of the blocks from `first` to the end of its window. Each lane has the
  // page number of one run.
  struct Pages {
    int32 first;
    int32 page;

    LAZYROPE_DEVICE int32 window() const { return first / Table::kWindow; }
  };

  // The warp's rotated queries, and the base for which they are rotated.
  struct Rotated {
    Queries queries;
    int32 base = 0;
  };

  // Returns a tile of a block of entries, and issues a later one.
  LAZYROPE_DEVICE SharedPtr next_tile(const Table& table, Ring& ring, Pages& pages,
                                      int32 tile) const {
    ring.wait();
    issue(table, ring, pages, tile + kTiles - 1);
    return ring.take();
  }

  // Compares the scores of a block of entries, whose two tiles are keys, with the best of each row.
  LAZYROPE_DEVICE void scan_block(const Table& table, Ring& ring, Pages& pages, int32 block,
                                  const Queries& queries) const {
    const int32 first_row = work_tile().rows().first_row;
    const int32 code = table.memory_code(block);
#pragma unroll 1
    for (int32 half = 0; half < 2; ++half) {
      const SharedPtr tile = next_tile(table, ring, pages, 2 * block + half);
      float scores[kRowTiles][kKeyTiles][4];
      Product::multiply_query_key(scores, queries, keys(tile));
      const int32 first_column = half * kKeys;
      scan_entries<Spec::kGroupSize>(
          scores, entry_of(entries(warp_index()), memory_index(code)),
          entry_tile(table.info(block), code, first_column),
          [&](int32 row) { return first_row + row; },
          [&](int32 column) {
            return table.location(block, first_column + column,
                                  slot_bits(params_.entry_lse.page_size));
          });
    }
  }

  // Looks up the entries of a segment with cells. Nothing needs the two tiles of its block, so the
  // next copies are issued first.
  LAZYROPE_DEVICE void look_up_cells(const Table& table, Ring& ring, Pages& pages,
                                     int32 block) const {
    using LookUp = CellLookUp<Spec, QueryTile>;
#pragma unroll 1
    for (int32 half = 0; half < 2; ++half) next_tile(table, ring, pages, 2 * block + half);
    const int32 code = table.memory_code(block);
    const CellSlots slots = cell_slots(params_.step, table.info(block).position, code);
    const LookUp look_up(params_, slots, code, kv_head(), {0, 1});
    const SharedPtr best = entry_of(entries(warp_index()), memory_index(code));
#pragma unroll 1
    for (int32 row = 0; row < num_rows(); row += LookUp::kRows) {
      const int32 count = smaller(num_rows() - row, LookUp::kRows);
      const LaneEntries found = look_up.find(
          {queries(), row, count, work_tile().rows().first_row + row}, [](LaneEntries&) {});
      look_up.template store<kRowEntryBytes>(found, best + row * kRowEntryBytes, count);
    }
    bar_warp_sync();  // all lanes have read the queries
  }

  // These return the address of the lane's fragments of a tile.
  LAZYROPE_DEVICE SharedPtr keys(SharedPtr tile) const {
    return tile + static_cast<int32>(KvTile::key_fragment({0}, lane_index()).address);
  }
  LAZYROPE_DEVICE SharedPtr values(SharedPtr tile) const {
    return tile + static_cast<int32>(KvTile::fragment({0}, lane_index()).address);
  }

  // Issues one cp.async group: tile 2 i has the keys of block i, and tile 2 i + 1 its values. The
  // group is empty after the last block. The biases of keys come with these.
  LAZYROPE_DEVICE void issue(const Table& table, Ring& ring, Pages& pages, int32 tile) const {
    const int32 block = tile >> 1;
    if (block < num_blocks_) {
      if (block >= pages.first) store_pages(table, pages);
      if constexpr (kHasStates) {
        const int32 half = is_memory(table.memory_code(block)) ? tile & 1 : 0;
        const bool are_keys = half == (tile & 1);
        ring.issue(Half{table, half}, block, are_keys ? params_.pool.keys : params_.pool.values);
      } else {
        ring.issue(table, block, (tile & 1) == 0 ? params_.pool.keys : params_.pool.values);
      }
      if constexpr (Spec::kHasKeyBias) {
        if ((tile & 1) == 0) key_biases_.issue(params_.key_bias, table, block);
      }
    }
    cp_async_commit_group();
  }

  LAZYROPE_DEVICE void store_pages(const Table& table, Pages& pages) const {
    const int32 window = pages.window();
    table.store_page(window, pages.first, pages.page);
    bar_warp_sync();
    pages.first = (window + 1) * Table::kWindow;
  }

  // Issues the remaining first copies, after the barrier that ends the reads of the previous
  // results in the same memory.
  LAZYROPE_DEVICE Pages fill(const Table& table, Ring& ring) {
    Pages pages = {num_prefetched_, 0};
    bar_sync();
    fill_prefetched(table, ring, pages, kTilesAhead, kTiles - 1);
    if (num_prefetched_ < num_blocks_)
      pages.page = resolve(table, 0, num_prefetched_, table.look_up_first());
    start();
    wait_for_queries();
    return pages;
  }

  LAZYROPE_DEVICE void wait_for_queries() const {
    cp_async_wait_group<kTiles - 1 - kTilesAhead>();
    bar_sync();
  }

  // Issues the tiles from `first` to end - 1 whose page numbers are known. Each tile is a cp.async
  // group, which is empty if its page numbers are not known.
  LAZYROPE_DEVICE void fill_prefetched(const Table& table, Ring& ring, Pages& pages, int32 first,
                                       int32 end) const {
#pragma unroll 1
    for (int32 tile = first; tile < end; ++tile) {
      if (tile < 2 * pages.first)
        issue(table, ring, pages, tile);
      else
        cp_async_commit_group();
    }
  }

  // Issues the first tiles that fill_prefetched() did not issue.
  LAZYROPE_DEVICE void fill_up(const Table& table, Ring& ring, Pages& pages) const {
#pragma unroll 1
    for (int32 tile = 2 * pages.first; tile < kTiles - 1; ++tile) issue(table, ring, pages, tile);
  }

  // Starts the loads of a window's page numbers, and saves the point at which the next window's
  // search continues.
  LAZYROPE_DEVICE static int32 resolve(const Table& table, int32 window, int32 first,
                                       typename Table::Lookup lookup) {
    const int32 page = table.resolve_ahead(window, first, lookup);
    table.save_search_point(window, lookup);
    return page;
  }

  // Looks up the next window when a quarter of the present one has been read. Its page numbers
  // arrive before its first block is issued.
  LAZYROPE_DEVICE void resolve_ahead(const Table& table, int32 block, Pages& pages) const {
    constexpr int32 kEarly = Table::kWindow / 4;
    const int32 window = block / Table::kWindow + 1;
    if (block % Table::kWindow != kEarly || window * Table::kWindow >= num_blocks_) return;
    if (pages.first < window * Table::kWindow) store_pages(table, pages);
    pages.first = window * Table::kWindow;
    pages.page = resolve(table, window, pages.first, table.look_up(window));
  }

  // Issues one cp.async group: the rows of all heads, one head after another, and their positions.
  LAZYROPE_DEVICE void copy_queries() const {
    const int32 num_heads = this->num_heads();
    const int32 num_rows = this->num_rows();
#pragma unroll 1
    for (int32 head = 0; head < num_heads; ++head)
      copy_query_rows<Spec, WholeCta>(memory_ + kLayout.original, params_,
                                      rows_of_head(work_tile().rows(), head), 0, num_rows,
                                      head * num_rows, (head + 1) * num_rows);
    copy_row_positions<Spec, WholeCta, kRows>(
        positions(), params_.step.positions, work_tile(), 0,
        [](SharedPtr to, const int32* from) { cp_async_ca_4(to, from); });
    cp_async_commit_group();
  }

  LAZYROPE_DEVICE void start() {
    set_zero(acc_o_);
    softmax_.reset();
    if constexpr (kHasStates)
      reset_entries(entries(warp_index()), kRows, lane_index(), kWarpThreads);
    // One of the warps that share a head adds its sink.
    if (Spec::kSinks && work_tile().split().index == 0 && warp_index() < num_heads())
      add_sinks<Spec>(softmax_, params_.sinks, rows_of_head(work_tile().rows(), head()), 0,
                      num_rows());
    clear_queries();
  }

  // Clears the rows past the work tile's last row: nothing writes them later.
  LAZYROPE_DEVICE void clear_queries() const {
#pragma unroll 1
    for (int32 i = lane_index(); i < kRows * QueryTile::kChunks; i += kWarpThreads)
      st_shared(QueryTile::chunk(queries(), i / QueryTile::kChunks, i % QueryTile::kChunks),
                Chunk{});
  }

  // Rotates the warp's queries for a segment whose token 0 is at logical position `base`, while its
  // keys arrive. The warp called the ring's wait() after the products that read the previous
  // queries.
  LAZYROPE_DEVICE void rotate_queries(Rotated& rotated, int32 base) const {
    rotate_rows<Spec>(RowsOf<QueryTile>(queries()),
                      RowsOf<QueryTile>(memory_ + kLayout.original, head() * num_rows()),
                      positions(), num_rows(), work_tile().rows().first_row, base, angles_.get());
    bar_warp_sync();
    rotated = {Queries(queries(), lane_index()), base};
  }

  // The factor from a score to a logit in log2 units.
  LAZYROPE_DEVICE float scale_log2() const {
    return Product::kScaled ? params_.scale_log2 * key_scale_ : params_.scale_log2;
  }

  // Adds the biases of a block's keys to its scores, if the spec has them. Returns the factor that
  // is left.
  template <class Scale>
  LAZYROPE_DEVICE auto add_key_bias(float (&scores)[kRowTiles][kKeyTiles][4], const Scale& scale,
                                    int32 block) const {
    if constexpr (Spec::kHasKeyBias)
      return key_biases_.add(scores, scale, block);
    else
      return scale;
  }

  // Computes the weights of a block's keys for the warp's rows.
  LAZYROPE_DEVICE void softmax_step(float (&weights)[kRowTiles][kKeyTiles][4], int32 block,
                                    const BlockInfo& info, const Queries& queries, SharedPtr keys) {
    Product::multiply_query_key(weights, queries, keys);
    const auto capped = apply_softcap<Spec>(
        weights, scale_of_rows<Spec, float[kRowTiles][kKeyTiles][4]>(scale_log2(), positions()));
    const auto scale = add_key_bias(weights, capped, block);
    const WorkTileExtent extent = work_tile().extent();
    if (info.begin > 0 || info.end < kKeys ||
        !all_visible<Mask>({extent.first_position, extent.last_position}, info.position,
                           info.position + kKeys - 1))
      mask_scores<Mask>(weights, positions(), info.position, info.begin, info.end);
    softmax_.softmax_step(weights, acc_o_, scale);
  }

  // Stages the rows of all warps in shared memory, combines those of the warps that share a head,
  // and writes the results. Returns false after the CTA's last work tile.
  LAZYROPE_DEVICE bool finish() {
    const bool is_last = work_tile().keys().next < 0;
    const WorkTileResult<Spec> result(params_, work_tile());
    const ResultShape result_shape = {num_rows(), num_heads(), kWarps / num_heads()};
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if (m == 0)
        bar_warp_sync();
      else
        bar_sync();
      store_partial<Product, kHeadDim>(staged_rows(warp_index()), acc_o_[m], softmax_, m);
      bar_sync();
      if (m == kRowTiles - 1 && !is_last) begin_next_work_tile();
      write_staged(result, result_shape, m * 16);
    }
    result.finish(is_last, memory_ + kLayout.flags);
    return !is_last;
  }

  // The shape of the results, which are written after the next work tile has begun.
  struct ResultShape {
    int32 num_rows;
    int32 num_heads;
    int32 warps_per_head;  // warps that share a head
  };

  LAZYROPE_DEVICE SharedPtr staged_rows(int32 warp) const {
    return memory_ + (warp * kLayout.ring_bytes + kTilesAhead * kTileBytes);
  }

  // All warps have finished with the work tile. The next one arrived together with the queries.
  LAZYROPE_DEVICE void begin_next_work_tile() {
    current_ = kWorkTileBytes - current_;
    begin_work_tile();
  }

  LAZYROPE_DEVICE void write_staged(const WorkTileResult<Spec>& result,
                                    const ResultShape& result_shape, int32 first_row) const {
    const int32 rows = smaller(result_shape.num_rows - first_row, 16);
#pragma unroll 1
    for (int32 i = thread_index(); i < result_shape.num_heads * rows * Record::kQuads;
         i += block_threads()) {
      const int32 quad = i % Record::kQuads;
      const int32 row = i / Record::kQuads % rows;
      const int32 head = i / Record::kQuads / rows;
      result.write(head, first_row + row, quad,
                   combine_partials<kWarps>(result_shape.warps_per_head,
                                            [&](int32 peer) {
                                              const int32 warp =
                                                  peer * result_shape.num_heads + head;
                                              return load_partial<kHeadDim>(
                                                  staged_rows(warp) + row * Record::kBytes, quad);
                                            }),
                   best_entries(result_shape, head, first_row + row));
    }
  }

  // Returns the best entries of a row among those of the warps that share its head.
  LAZYROPE_DEVICE Entries best_entries(const ResultShape& result_shape, int32 head,
                                       int32 row) const {
    Entries best;
    if constexpr (kHasStates) {
      best.reset();
#pragma unroll 1
      for (int32 peer = 0; peer < result_shape.warps_per_head; ++peer)
        best.improve(
            load_entries<Spec::kMemories>(entries(peer * result_shape.num_heads + head), row));
    }
    return best;
  }

  const Params& params_;
  SharedPtr memory_;
  int32 current_ = 0;         // offset of the present one of two work tiles, in bytes
  int32 num_blocks_ = 0;      // blocks of this warp
  int32 num_prefetched_ = 0;  // among them, blocks whose page numbers are in the work tile
  AngleStorage<DirectAngles<Spec>, kHasRegisters> angles_;
  float key_scale_;  // set if the pool has scales
  [[no_unique_address]] KeyBiases key_biases_;
  float acc_o_[kRowTiles][Product::kColumnTiles][4];
  SoftmaxState<kRowTiles> softmax_;
};

}  // namespace lazyrope
