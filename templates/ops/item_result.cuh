// What becomes of an item's rows: they are the output, or a part of their tile's result, which
// those who hold its parts merge.
#pragma once

#include "ops/split_tile.cuh"
#include "ops/tile_merge.cuh"

namespace lazyrope {

// kSharesTasks: of those who merge several lanes may share one (ops/tile_merge.cuh).
template <class Spec, class Team = WholeCta, bool kSharesTasks = true>
class ItemResult {
  using Parts = SplitRows<Spec, kSharesTasks>;

 public:
  LAZYROPE_DEVICE ItemResult(const AttendParams& params, ItemPtr item)
      : params_(params),
        num_rows_(item.extent().num_rows),
        rows_(item.rows()),
        split_(item.split()),
        num_owners_(item.num_owners()),
        output_(params.out, params.lse, ValueScales(params.pool), rows_),
        partial_(params.work, split_) {}

  // Whether it is the output.
  LAZYROPE_DEVICE bool is_whole() const { return split_.count == 1; }
  LAZYROPE_DEVICE const OutputRows<Spec>& output() const { return output_; }
  LAZYROPE_DEVICE const Parts& part() const { return partial_; }

  // Columns 4 * quad and following of a row of one of the item's KV heads.
  LAZYROPE_DEVICE void write(int32 head, int32 row, int32 quad, const RowPart& part) const {
    const Quads<1> quads = {{part}};
    if (is_whole())
      write_output<1>(head, row, quad, quads);
    else
      leave<1>(head, row, quad, quads);
  }

  // Quads of a row, each kApart behind the one before.
  template <int kCount>
  struct Quads {
    RowPart part[kCount];
  };
  template <int kApart, int kCount>
  LAZYROPE_DEVICE void leave(int32 head, int32 row, int32 quad, const Quads<kCount>& quads) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      partial_.write(head * num_rows_ + row, quad + i * kApart, quads.part[i]);
  }
  template <int kApart, int kCount>
  LAZYROPE_DEVICE void write_output(int32 head, int32 row, int32 quad,
                                    const Quads<kCount>& quads) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      output_.write_values(head, row, quad + i * kApart, quads.part[i]);
    if (quad == 0) output_.write_lse(head, row, quads.part[0].stats);
  }

  // By one warp, once, before the rows are complete: whether they are joined with their tile's
  // other part, which has been left. If so, join() and write_output() take the place of leave() and
  // finish().
  LAZYROPE_DEVICE static bool try_join(const AttendParams& params, ItemPtr item) {
    return SplitTile<Team>::try_join(params.work, item.split(), item.num_owners());
  }
  // By all lanes of a warp, some of which may have no row: what a lane's quads come to with those
  // of the other part. The same as if both had been left, to the bit but for what vanishes.
  template <int kApart, int kCount>
  LAZYROPE_DEVICE Quads<kCount> join(int32 head, int32 row, int32 quad, const Quads<kCount>& own,
                                     bool exists) const {
    return joined<kApart>(params_.work, split_, exists ? head * num_rows_ + row : 0, quad, own,
                          exists);
  }

  // All threads of the team, when every row is written. `may_wait`: the CTA has nothing to do
  // afterwards.
  LAZYROPE_DEVICE void finish(bool may_wait, SharedPtr flags) const {
    if (!is_whole())
      merge(params_.work, params_.out, params_.lse, ValueScales(params_.pool), rows_, split_,
            num_owners_, num_rows_, may_wait, flags);
  }

 private:
  // Not inlined: beside the main loop, what it needs would cost that loop registers. It gets the
  // parameters themselves: as a reference they would lie in memory, and be waited for when all else
  // is done.
  LAZYROPE_DEVICE_CALL static void merge(WorkView work, OutputTensor out, LseTensor lse,
                                         ValueScales scales, ItemRows rows, ItemSplit split,
                                         int32 num_owners, int32 num_rows, bool may_wait,
                                         SharedPtr flags) {
    const OutputRows<Spec> output(out, lse, scales, rows);
    const Parts partial(work, split);
    const TileMerge<Spec, kSharesTasks> tile(output, partial, num_rows, rows.num_heads,
                                             split.count);
    SplitTile<Team>(work, split, num_owners, flags).merge(tile, may_wait);
  }

  // Not inlined either.
  template <int kApart, int kCount>
  LAZYROPE_DEVICE_CALL static Quads<kCount> joined(WorkView work, ItemSplit split, int32 row,
                                                   int32 quad, Quads<kCount> own, bool exists) {
    constexpr int32 kOther = 1;
    const Parts parts(work, split);
    typename Parts::Found found[kCount];
    bool is_there = false;
#pragma unroll 1
    while (!is_there) {
      is_there = true;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        found[i] = parts.columns(row, quad + i * kApart).find(kOther);
#pragma unroll
      for (int i = 0; i < kCount; ++i) is_there &= found[i].is_complete();
      is_there = !vote_sync_any(exists && !is_there);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      own.part[i] = merge_parts<2>(
          2, [&](int32 part) { return part == kOther ? found[i].part() : own.part[i]; });
      if (exists) parts.columns(row, quad + i * kApart).clear(kOther);
    }
    return own;
  }

  const AttendParams& params_;
  int32 num_rows_;
  ItemRows rows_;
  ItemSplit split_;
  int32 num_owners_;
  OutputRows<Spec> output_;
  Parts partial_;
};

}  // namespace lazyrope
