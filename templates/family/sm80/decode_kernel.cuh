// Family sm80, few rows: decode, by mma.sync, ldmatrix and cp.async (sm_80 and every later GPU).
//
// What counts is that memory is never idle. A CTA of kWarpsN warps takes up to kWarpM query
// rows: those of one token or a few, of one KV head or of several. Each warp has one of the heads
// and every so manieth block of kWarpN keys, asks for its own blocks in a ring of its own, and
// does not wait for the others until the end.
//
// A warp's queries lie in shared memory, turned for the base of the present segment; on a block of
// another base the warp turns them anew from the original, in fp32, rounded once.
//
// A work tile's queries and first tiles are asked for before the results of the work tile before
// leave.
#pragma once

#include "ops/mask_scores.cuh"
#include "ops/rotate.cuh"
#include "ops/sinks.cuh"
#include "ops/softcap.cuh"
#include "ops/softmax.cuh"
#include "ops/work_tile_result.cuh"
#include "pipeline/kv_ring.cuh"
#include "tile/query_fragments.cuh"

namespace lazyrope {

template <class Spec, class Shape>
class Sm80Decode {
  static constexpr int kHeadDim = Spec::kHeadDim;
  static constexpr int kWarps = Shape::kWarpsN;
  static constexpr int kRows = Shape::kWarpM;  // of all heads
  static constexpr int kKeys = Shape::kWarpN;
  static constexpr int kTiles = Shape::kStages;
  static constexpr int kStripe = 4;
  static constexpr bool kCaps = Spec::kSoftcap > 0.0f;
  static_assert(Shape::kWarpsM == 1 && Shape::kMmaN == kKeys);

  static constexpr int kRowTiles = kRows / 16;
  static constexpr int kKeyTiles = kKeys / 8;

  using Mask = typename Spec::Mask;
  using Product = typename Spec::Product;
  using QueryTile = typename Product::QueryTile;
  using KvTile = typename Product::KvTile;
  // Turned queries, and what turns them, are held in registers where results leave room for them.
  using Queries = typename FittingQueries<Product, kRowTiles, 32>::Type;
  static constexpr bool kHasRegisters = kRowTiles * kHeadDim <= 128;
  static_assert(!Product::kWidens);
  using Ring = TileRing<typename Product::StoredTile, kKeys, kTiles>;
  using Table = BlockTable<Mask, kKeys>;
  using Record = PartialRecord<kHeadDim>;
  // Windows are looked up in time: resolve_ahead.
  static_assert(Table::kWindow / 4 * 3 >= (kTiles + 1) / 2);

  // A warp's results leave by its ring, behind the first tiles of the next work tile.
  static constexpr int kTileBytes = Ring::kBytes / kTiles;
  static constexpr int kStagedTiles = ceil_div(16 * Record::kBytes, kTileBytes);
  static constexpr int kTilesAhead = larger(kTiles - larger(kStagedTiles, 1), 0);
  static constexpr int kWarpBytes = larger(kTiles, kStagedTiles) * kTileBytes;

  // Shared memory, from its start: each warp's ring, each warp's turned queries, the original
  // queries, each warp's block table, row positions, the work tile and the next, flags.
  static constexpr int kQueryBytes = kRows * QueryTile::kRowBytes;
  static constexpr int kWorkTileBytes = static_cast<int>(sizeof(WorkTile));
  static constexpr int kQueries = kWarps * kWarpBytes;
  static constexpr int kOriginal = kQueries + kWarps * kQueryBytes;
  static constexpr int kTables = kOriginal + kQueryBytes;
  static constexpr int kPositions = kTables + kWarps * Table::kBytes;
  static constexpr int kWorkTiles = kPositions + kRows * 4;
  static constexpr int kFlags = kWorkTiles + 2 * kWorkTileBytes;

 public:
  using Params = AttendParams;
  static constexpr int kSharedBytes = kFlags + 16;

  // All threads of the CTA: its work tiles, one after the other. `memory` is aligned to 1024 bytes.
  LAZYROPE_DEVICE static void run(const AttendParams& params, SharedPtr memory) {
    Sm80Decode tile(params, memory);
    if (tile.work_tile().extent().num_rows == 0) return;
    tile.begin_work_tile();
    do tile.attend();
    while (tile.finish());
  }

 private:
  LAZYROPE_DEVICE Sm80Decode(const AttendParams& params, SharedPtr memory)
      : params_(params), memory_(memory), angles_() {
    work_tile().copy_from(params.work.work_tiles + block_index());
    bar_sync();
  }

  LAZYROPE_DEVICE WorkTilePtr work_tile() const {
    return WorkTilePtr(memory_ + (kWorkTiles + current_));
  }
  LAZYROPE_DEVICE WorkTilePtr next_work_tile() const {
    return WorkTilePtr(memory_ + (kWorkTiles + (kWorkTileBytes - current_)));
  }
  LAZYROPE_DEVICE SharedPtr positions() const { return memory_ + kPositions; }
  LAZYROPE_DEVICE SharedPtr queries() const {
    return memory_ + kQueries + warp_index() * kQueryBytes;
  }
  LAZYROPE_DEVICE Table table() const {
    return Table(memory_ + kTables + warp_index() * Table::kBytes, choose_blocks(), params_.step,
                 work_tile());
  }
  // In which so many tiles have been asked for.
  LAZYROPE_DEVICE Ring ring(int32 tiles) const {
    return Ring(memory_ + warp_index() * kWarpBytes, params_.pool, kv_head(), tiles);
  }
  LAZYROPE_DEVICE int32 num_rows() const { return work_tile().extent().num_rows; }
  LAZYROPE_DEVICE int32 num_heads() const { return work_tile().rows().num_heads; }
  LAZYROPE_DEVICE int32 head() const { return warp_index() % num_heads(); }
  LAZYROPE_DEVICE int32 kv_head() const { return work_tile().rows().kv_head + head(); }

  // The work tile, and what it needs first, with the next work tile. Of the one before nobody reads
  // any more.
  LAZYROPE_DEVICE void begin_work_tile() {
    num_blocks_ = choose_blocks().count(work_tile().extent().num_blocks);
    if constexpr (Product::kScaled) key_scale_ = key_scale(params_.pool, kv_head());
    const Table table = this->table();
    Ring ring = this->ring(0);
    const WorkTileStart start = work_tile().start();
    num_prefetched_ = table.count_prefetched(start);
    table.seed(start, num_prefetched_);
    Pages pages = {num_prefetched_, 0};
    bar_warp_sync();
    fill_prefetched(table, ring, pages, 0, kTilesAhead);
    if (const int32 next = work_tile().keys().next; next >= 0)
      next_work_tile().copy_async(params_.work.work_tiles + next);
    copy_queries();
  }

  // A warp turns its queries for every segment of which it has a block: where segments are short,
  // it takes blocks in stripes, the first of which ends with the first segment.
  LAZYROPE_DEVICE BlockChoice choose_blocks() const {
    const int32 first = warp_index() / num_heads();
    const int32 step = kWarps / num_heads();
    const int32 in_first = ceil_div(work_tile().start().end, kKeys);
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
      if (block == 0 || rotated.base != info.base) rotate_queries(rotated, info.base);
      if (block == 0) fill_up(table, ring, pages);
      ring.wait();
      issue(table, ring, pages, 2 * block + kTiles - 1);
      float weights[kRowTiles][kKeyTiles][4];
      softmax_step(weights, info, rotated.queries, keys(ring.take()));
      ring.wait();
      issue(table, ring, pages, 2 * block + kTiles);
      Product::multiply_weight_value(acc_o_, weights, values(ring.take()));
    }
    softmax_.finish();
  }

  // Page numbers on their way: of the blocks of a window from `first` on, a run's in each lane.
  struct Pages {
    int32 first;
    int32 page;

    LAZYROPE_DEVICE int32 window() const { return first / Table::kWindow; }
  };

  // The warp's queries as they are turned.
  struct Rotated {
    Queries queries;
    int32 base = 0;
  };

  // The lane's fragments of a tile.
  LAZYROPE_DEVICE SharedPtr keys(SharedPtr tile) const {
    return tile + static_cast<int32>(KvTile::key_fragment({0}, lane_index()).address);
  }
  LAZYROPE_DEVICE SharedPtr values(SharedPtr tile) const {
    return tile + static_cast<int32>(KvTile::fragment({0}, lane_index()).address);
  }

  // Tile 2 i are the keys of block i, tile 2 i + 1 its values: one group of copies, which is empty
  // behind the last.
  LAZYROPE_DEVICE void issue(const Table& table, Ring& ring, Pages& pages, int32 tile) const {
    const int32 block = tile >> 1;
    if (block < num_blocks_) {
      if (block >= pages.first) store_pages(table, pages);
      ring.issue(table, block, (tile & 1) == 0 ? params_.pool.keys : params_.pool.values);
    }
    cp_async_commit_group();
  }

  LAZYROPE_DEVICE void store_pages(const Table& table, Pages& pages) const {
    const int32 window = pages.window();
    table.store_page(window, pages.first, pages.page);
    bar_warp_sync();
    pages.first = (window + 1) * Table::kWindow;
  }

  // Asks for the rest of what is needed at first, where the results of the work tile before have
  // left.
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

  // Those of the first tiles whose pages are known.
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

  // The first tiles, those whose pages were not known.
  LAZYROPE_DEVICE void fill_up(const Table& table, Ring& ring, Pages& pages) const {
#pragma unroll 1
    for (int32 tile = 2 * pages.first; tile < kTiles - 1; ++tile) issue(table, ring, pages, tile);
  }

  // A window's page numbers, which are on their way then; the next is looked up from where it ends.
  LAZYROPE_DEVICE static int32 resolve(const Table& table, int32 window, int32 first,
                                       typename Table::Lookup lookup) {
    const int32 page = table.resolve_ahead(window, first, lookup);
    table.save_walk(window, lookup);
    return page;
  }

  // The next window is looked up early in each; its pages have until its first block is asked for.
  LAZYROPE_DEVICE void resolve_ahead(const Table& table, int32 block, Pages& pages) const {
    constexpr int32 kEarly = Table::kWindow / 4;
    const int32 window = block / Table::kWindow + 1;
    if (block % Table::kWindow != kEarly || window * Table::kWindow >= num_blocks_) return;
    if (pages.first < window * Table::kWindow) store_pages(table, pages);
    pages.first = window * Table::kWindow;
    pages.page = resolve(table, window, pages.first, table.look_up(window));
  }

  // The rows of all heads, one head behind the other: a group of copies.
  LAZYROPE_DEVICE void copy_queries() const {
    const int32 num_heads = this->num_heads();
    const int32 num_rows = this->num_rows();
#pragma unroll 1
    for (int32 head = 0; head < num_heads; ++head)
      copy_query_rows<Spec, WholeCta>(memory_ + kOriginal, params_.q,
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
    // One of the warps that share a head.
    if (Spec::kSinks && work_tile().split().index == 0 && warp_index() < num_heads())
      add_sinks<Spec>(softmax_, params_.sinks, rows_of_head(work_tile().rows(), head()), 0,
                      num_rows());
    clear_queries();
  }

  // Of rows past the work tile's last, which nothing writes later.
  LAZYROPE_DEVICE void clear_queries() const {
#pragma unroll 1
    for (int32 i = lane_index(); i < kRows * QueryTile::kChunks; i += kWarpThreads)
      st_shared(QueryTile::chunk(queries(), i / QueryTile::kChunks, i % QueryTile::kChunks),
                Chunk{});
  }

  // Turns the warp's queries for a segment whose token 0 lies at logical position `base`, while its
  // keys come. The products before have read them: the ring has been waited for since.
  LAZYROPE_DEVICE void rotate_queries(Rotated& rotated, int32 base) const {
    rotate_rows<Spec>(RowsOf<QueryTile>(queries()),
                      RowsOf<QueryTile>(memory_ + kOriginal, head() * num_rows()), positions(),
                      num_rows(), work_tile().rows().first_row, base, angles_.get());
    bar_warp_sync();
    rotated = {Queries(queries(), lane_index()), base};
  }

  // Of scores, times log2(e).
  LAZYROPE_DEVICE float scale_log2() const {
    return Product::kScaled ? params_.scale_log2 * key_scale_ : params_.scale_log2;
  }

  // The rows' weights of a block's keys.
  LAZYROPE_DEVICE void softmax_step(float (&weights)[kRowTiles][kKeyTiles][4],
                                    const BlockInfo& info, const Queries& queries, SharedPtr keys) {
    Product::multiply_query_key(weights, queries, keys);
    if constexpr (kCaps) cap_scores(weights, scale_log2(), Spec::kSoftcap);
    const WorkTileExtent extent = work_tile().extent();
    if (info.begin > 0 || info.end < kKeys ||
        !all_visible<Mask>({extent.first_position, extent.last_position}, info.position,
                           info.position + kKeys - 1))
      mask_scores<Mask>(weights, positions(), info.position, info.begin, info.end);
    softmax_.softmax_step(weights, acc_o_, kCaps ? 1.0f : scale_log2());
  }

  // Rows leave by way of shared memory, where the parts of warps that share a head are merged.
  // False after the CTA's last work tile.
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
    result.finish(is_last, memory_ + kFlags);
    return !is_last;
  }

  // What leaves, while the next work tile has begun.
  struct ResultShape {
    int32 num_rows;
    int32 num_heads;
    int32 warps_per_head;  // warps that share a head
  };

  LAZYROPE_DEVICE SharedPtr staged_rows(int32 warp) const {
    return memory_ + (warp * kWarpBytes + kTilesAhead * kTileBytes);
  }

  // All warps have done with the work tile. The next has been there for long.
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
                   combine_partials<kWarps>(result_shape.warps_per_head, [&](int32 peer) {
                     const int32 warp = peer * result_shape.num_heads + head;
                     return load_partial<kHeadDim>(staged_rows(warp) + row * Record::kBytes, quad);
                   }));
    }
  }

  const AttendParams& params_;
  SharedPtr memory_;
  int32 current_ = 0;         // which of two the work tile is, in bytes
  int32 num_blocks_ = 0;      // the warp's
  int32 num_prefetched_ = 0;  // of these, blocks whose pages came with the work tile
  LaneAngles<LaneRevolutions<Spec>, kHasRegisters> angles_;
  float key_scale_;  // where the pool is scaled
  float acc_o_[kRowTiles][Product::kColumnTiles][4];
  SoftmaxState<kRowTiles> softmax_;
};

}  // namespace lazyrope
