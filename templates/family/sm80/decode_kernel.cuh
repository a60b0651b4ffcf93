// Family sm80, few rows: decode, by mma.sync, ldmatrix and cp.async (sm_80 and every later GPU).
//
// What counts is that memory is never idle. A CTA of kKeyWarps warps takes up to kWarpRows query
// rows: those of one token or a few, of one KV head or of several. Each warp has one of the heads
// and every so manieth block of kWarpKeys keys, asks for its own blocks in a ring of its own, and
// does not wait for the others until the end.
//
// A warp's queries lie in shared memory, turned for the base of the present segment; on a block of
// another base the warp turns them anew from the original, in fp32, rounded once.
//
// An item's queries and first tiles are asked for before the results of the item before leave.
#pragma once

#include "ops/item_result.cuh"
#include "ops/mask_scores.cuh"
#include "ops/rotate.cuh"
#include "ops/sinks.cuh"
#include "ops/softcap.cuh"
#include "ops/softmax.cuh"
#include "pipeline/kv_ring.cuh"
#include "tile/query_fragments.cuh"

namespace lazyrope {

template <class Spec, class Shape>
class Sm80Decode {
  static constexpr int kHeadDim = Spec::kHeadDim;
  static constexpr int kWarps = Shape::kKeyWarps;
  static constexpr int kRows = Shape::kWarpRows;  // of all heads
  static constexpr int kKeys = Shape::kWarpKeys;
  static constexpr int kTiles = Shape::kStages;
  static constexpr int kStripe = 4;
  static constexpr bool kCaps = Spec::kSoftcap > 0.0f;
  static_assert(Shape::kRowWarps == 1 && Shape::kStepKeys == kKeys);

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
  using Record = PartRecord<kHeadDim>;
  // Windows are looked up in time: resolve_ahead.
  static_assert(Table::kWindow / 4 * 3 >= (kTiles + 1) / 2);

  // A warp's results leave by its ring, behind the first tiles of the next item.
  static constexpr int kTileBytes = Ring::kBytes / kTiles;
  static constexpr int kLeftTiles = ceil_div(16 * Record::kBytes, kTileBytes);
  static constexpr int kTilesAhead = larger(kTiles - larger(kLeftTiles, 1), 0);
  static constexpr int kWarpBytes = larger(kTiles, kLeftTiles) * kTileBytes;

  // Shared memory, from its start: each warp's ring, each warp's turned queries, the original
  // queries, each warp's block table, row positions, the item and the next, flags.
  static constexpr int kQueryBytes = kRows * QueryTile::kRowBytes;
  static constexpr int kItemBytes = static_cast<int>(sizeof(Item));
  static constexpr int kQueries = kWarps * kWarpBytes;
  static constexpr int kOriginal = kQueries + kWarps * kQueryBytes;
  static constexpr int kTables = kOriginal + kQueryBytes;
  static constexpr int kPositions = kTables + kWarps * Table::kBytes;
  static constexpr int kItem = kPositions + kRows * 4;
  static constexpr int kFlags = kItem + 2 * kItemBytes;

 public:
  using Params = AttendParams;
  static constexpr int kSharedBytes = kFlags + 16;

  // All threads of the CTA: its items, one after the other. `memory` is aligned to 1024 bytes.
  LAZYROPE_DEVICE static void run(const AttendParams& params, SharedPtr memory) {
    Sm80Decode tile(params, memory);
    if (tile.item().extent().num_rows == 0) return;
    tile.begin_item();
    do tile.attend();
    while (tile.finish());
  }

 private:
  LAZYROPE_DEVICE Sm80Decode(const AttendParams& params, SharedPtr memory)
      : params_(params), memory_(memory), angles_() {
    item().copy_from(params.work.items + block_index());
    bar_sync();
  }

  LAZYROPE_DEVICE ItemPtr item() const { return ItemPtr(memory_ + (kItem + present_)); }
  LAZYROPE_DEVICE ItemPtr next_item() const {
    return ItemPtr(memory_ + (kItem + (kItemBytes - present_)));
  }
  LAZYROPE_DEVICE SharedPtr positions() const { return memory_ + kPositions; }
  LAZYROPE_DEVICE SharedPtr queries() const {
    return memory_ + kQueries + warp_index() * kQueryBytes;
  }
  LAZYROPE_DEVICE Table table() const {
    return Table(memory_ + kTables + warp_index() * Table::kBytes, choose_blocks(), params_.step,
                 item());
  }
  // In which so many tiles have been asked for.
  LAZYROPE_DEVICE Ring ring(int32 tiles) const {
    return Ring(memory_ + warp_index() * kWarpBytes, params_.pool, kv_head(), tiles);
  }
  LAZYROPE_DEVICE int32 num_rows() const { return item().extent().num_rows; }
  LAZYROPE_DEVICE int32 num_heads() const { return item().rows().num_heads; }
  LAZYROPE_DEVICE int32 head() const { return warp_index() % num_heads(); }
  LAZYROPE_DEVICE int32 kv_head() const { return item().rows().kv_head + head(); }

  // The item, and what it needs first, with the next item. Of the one before nobody reads any more.
  LAZYROPE_DEVICE void begin_item() {
    num_blocks_ = choose_blocks().count(item().extent().num_blocks);
    if constexpr (Product::kScaled) key_scale_ = key_scale(params_.pool, kv_head());
    const Table table = this->table();
    Ring ring = this->ring(0);
    const ItemStart start = item().start();
    known_ = table.count_known(start);
    table.seed(start, known_);
    Pages pages = {known_, 0};
    bar_warp_sync();
    fill_known(table, ring, pages, 0, kTilesAhead);
    if (const int32 next = item().keys().next; next >= 0)
      next_item().copy_async(params_.work.items + next);
    copy_queries();
  }

  // A warp turns its queries for every segment of which it has a block: where segments are short,
  // it takes blocks in stripes, the first of which ends with the first segment.
  LAZYROPE_DEVICE BlockChoice choose_blocks() const {
    const int32 first = warp_index() / num_heads();
    const int32 step = kWarps / num_heads();
    const int32 in_first = ceil_div(item().start().end, kKeys);
    const int32 round = kStripe * step;
    const int32 length = in_first < round && item().extent().num_blocks >= round ? kStripe : 1;
    return {first, step, length, (length - in_first % length) % length};
  }

  LAZYROPE_DEVICE void attend() {
    const Table table = this->table();
    Ring ring = this->ring(smaller(kTilesAhead, 2 * known_));
    Pages pages = fill(table, ring);
    Turned turned;
#pragma unroll 1
    for (int32 block = 0; block < num_blocks_; ++block) {
      resolve_ahead(table, block, pages);
      const BlockInfo info = table.info(block);
      if (block == 0 || turned.base != info.base) turn_queries(turned, info.base);
      if (block == 0) fill_up(table, ring, pages);
      ring.wait();
      issue(table, ring, pages, 2 * block + kTiles - 1);
      float weights[kRowTiles][kKeyTiles][4];
      weigh(weights, info, turned.queries, keys(ring.take()));
      ring.wait();
      issue(table, ring, pages, 2 * block + kTiles);
      Product::multiply_weight_value(rows_, weights, values(ring.take()));
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
  struct Turned {
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
      if (block >= pages.first) place(table, pages);
      ring.issue(table, block, (tile & 1) == 0 ? params_.pool.keys : params_.pool.values);
    }
    cp_async_commit_group();
  }

  LAZYROPE_DEVICE void place(const Table& table, Pages& pages) const {
    const int32 window = pages.window();
    table.place(window, pages.first, pages.page);
    bar_warp_sync();
    pages.first = (window + 1) * Table::kWindow;
  }

  // Asks for the rest of what is needed at first, where the results of the item before have left.
  LAZYROPE_DEVICE Pages fill(const Table& table, Ring& ring) {
    Pages pages = {known_, 0};
    bar_sync();
    fill_known(table, ring, pages, kTilesAhead, kTiles - 1);
    if (known_ < num_blocks_) pages.page = resolve(table, 0, known_, table.look_up_first());
    start();
    wait_for_queries();
    return pages;
  }

  LAZYROPE_DEVICE void wait_for_queries() const {
    cp_async_wait_group<kTiles - 1 - kTilesAhead>();
    bar_sync();
  }

  // Those of the first tiles whose pages are known.
  LAZYROPE_DEVICE void fill_known(const Table& table, Ring& ring, Pages& pages, int32 first,
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
    table.leave(window, lookup);
    return page;
  }

  // The next window is looked up early in each; its pages have until its first block is asked for.
  LAZYROPE_DEVICE void resolve_ahead(const Table& table, int32 block, Pages& pages) const {
    constexpr int32 kEarly = Table::kWindow / 4;
    const int32 window = block / Table::kWindow + 1;
    if (block % Table::kWindow != kEarly || window * Table::kWindow >= num_blocks_) return;
    if (pages.first < window * Table::kWindow) place(table, pages);
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
                                      rows_of_head(item().rows(), head), 0, num_rows,
                                      head * num_rows, (head + 1) * num_rows);
    copy_row_positions<Spec, WholeCta, kRows>(
        positions(), params_.step.positions, item(), 0,
        [](SharedPtr to, const int32* from) { cp_async_ca_4(to, from); });
    cp_async_commit_group();
  }

  LAZYROPE_DEVICE void start() {
    set_zero(rows_);
    softmax_.reset();
    // One of the warps that share a head.
    if (Spec::kSinks && item().split().index == 0 && warp_index() < num_heads())
      add_sinks<Spec>(softmax_, params_.sinks, rows_of_head(item().rows(), head()), 0, num_rows());
    clear_queries();
  }

  // Of rows past the item's last, which nothing writes later.
  LAZYROPE_DEVICE void clear_queries() const {
#pragma unroll 1
    for (int32 i = lane_index(); i < kRows * QueryTile::kChunks; i += kWarpThreads)
      st_shared(QueryTile::chunk(queries(), i / QueryTile::kChunks, i % QueryTile::kChunks),
                Chunk{});
  }

  // Turns the warp's queries for a segment whose token 0 lies at logical position `base`, while its
  // keys come. The products before have read them: the ring has been waited for since.
  LAZYROPE_DEVICE void turn_queries(Turned& turned, int32 base) const {
    rotate_rows<Spec>(RowsOf<QueryTile>(queries()),
                      RowsOf<QueryTile>(memory_ + kOriginal, head() * num_rows()), positions(),
                      num_rows(), item().rows().first_row, base, angles_.get());
    bar_warp_sync();
    turned = {Queries(queries(), lane_index()), base};
  }

  // Of scores, times log2(e).
  LAZYROPE_DEVICE float scale_log2() const {
    return Product::kScaled ? params_.scale_log2 * key_scale_ : params_.scale_log2;
  }

  // The rows' weights of a block's keys.
  LAZYROPE_DEVICE void weigh(float (&weights)[kRowTiles][kKeyTiles][4], const BlockInfo& info,
                             const Queries& queries, SharedPtr keys) {
    Product::multiply_query_key(weights, queries, keys);
    if constexpr (kCaps) cap_scores(weights, scale_log2(), Spec::kSoftcap);
    const ItemExtent extent = item().extent();
    if (info.begin > 0 || info.end < kKeys ||
        !all_visible<Mask>({extent.first_position, extent.last_position}, info.position,
                           info.position + kKeys - 1))
      mask_scores<Mask>(weights, positions(), info.position, info.begin, info.end);
    softmax_.weigh(weights, rows_, kCaps ? 1.0f : scale_log2());
  }

  // Rows leave by way of shared memory, where the parts of warps that share a head are merged.
  // False after the CTA's last item.
  LAZYROPE_DEVICE bool finish() {
    const bool is_last = item().keys().next < 0;
    const ItemResult<Spec> result(params_, item());
    const Leaving leaving = {num_rows(), num_heads(), kWarps / num_heads()};
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if (m == 0)
        bar_warp_sync();
      else
        bar_sync();
      leave_rows<Product, kHeadDim>(left_rows(warp_index()), rows_[m], softmax_, m);
      bar_sync();
      if (m == kRowTiles - 1 && !is_last) begin_next_item();
      write_left(result, leaving, m * 16);
    }
    result.finish(is_last, memory_ + kFlags);
    return !is_last;
  }

  // What leaves, while the next item has begun.
  struct Leaving {
    int32 num_rows;
    int32 num_heads;
    int32 sharing;  // warps that share a head
  };

  LAZYROPE_DEVICE SharedPtr left_rows(int32 warp) const {
    return memory_ + (warp * kWarpBytes + kTilesAhead * kTileBytes);
  }

  // All warps have done with the item. The next has been there for long.
  LAZYROPE_DEVICE void begin_next_item() {
    present_ = kItemBytes - present_;
    begin_item();
  }

  LAZYROPE_DEVICE void write_left(const ItemResult<Spec>& result, const Leaving& leaving,
                                  int32 first_row) const {
    const int32 rows = smaller(leaving.num_rows - first_row, 16);
#pragma unroll 1
    for (int32 i = thread_index(); i < leaving.num_heads * rows * Record::kQuads;
         i += block_threads()) {
      const int32 quad = i % Record::kQuads;
      const int32 row = i / Record::kQuads % rows;
      const int32 head = i / Record::kQuads / rows;
      result.write(head, first_row + row, quad,
                   merge_parts<kWarps>(leaving.sharing, [&](int32 part) {
                     const int32 warp = part * leaving.num_heads + head;
                     return left_part<kHeadDim>(left_rows(warp) + row * Record::kBytes, quad);
                   }));
    }
  }

  const AttendParams& params_;
  SharedPtr memory_;
  int32 present_ = 0;     // which of two the item is, in bytes
  int32 num_blocks_ = 0;  // the warp's
  int32 known_ = 0;       // of these, blocks whose pages came with the item
  LaneAngles<LaneTurns<Spec>, kHasRegisters> angles_;
  float key_scale_;  // where the pool is scaled
  float rows_[kRowTiles][Product::kColumnTiles][4];
  SoftmaxState<kRowTiles> softmax_;
};

}  // namespace lazyrope
