// The result of a work tile's rows: the output, or the partial result of a KV split. Combiners
// combine partial results.
#pragma once

#include "ops/combine_scheduler.cuh"
#include "ops/tile_combiner.cuh"

namespace lazyrope {

// A row's partial result is combined in slices of kSliceWidth columns (ops/tile_combiner.cuh).
template <class Spec, class Team = WholeCta, SliceWidth kSliceWidth = kNarrowSlices>
class WorkTileResult {
  using Partials = SplitRows<Spec, kSliceWidth>;
  using Output = typename ResultRows<Spec>::Type;
  using Entries = RowEntries<Spec::kMemories>;
  static constexpr bool kHasStates = Spec::kMemories > 0;

 public:
  LAZYROPE_DEVICE WorkTileResult(const AttendParams& params, WorkTilePtr work_tile)
      : params_(params),
        num_rows_(work_tile.extent().num_rows),
        rows_(work_tile.rows()),
        split_(work_tile.split()),
        num_combiners_(work_tile.num_combiners()),
        output_(ResultRows<Spec>::make(params.out, params.lse, ValueScales(params.pool),
                                       ResultExtras<Spec>(params), rows_)),
        partial_(params.work, split_) {}

  // Tells whether the work tile has all keys of its rows, so that its result is the output.
  LAZYROPE_DEVICE bool is_unsplit() const { return split_.count == 1; }
  LAZYROPE_DEVICE const Output& output() const { return output_; }
  LAZYROPE_DEVICE const Partials& partial() const { return partial_; }

  // Writes columns 4 * quad to 4 * quad + 3 of a row of one of the work tile's KV heads, which has
  // the best entries `best` of its memories.
  LAZYROPE_DEVICE void write(int32 head, int32 row, int32 quad, const RowQuad& partial,
                             const Entries& best = {}) const {
    const RowQuad partials[] = {partial};
    write<1>(head, row, quad, partials, best);
  }
  // Writes kCount quads of a row, kStride quads from one to the next.
  template <int kStride, int kCount>
  LAZYROPE_DEVICE void write(int32 head, int32 row, int32 quad, const RowQuad (&partials)[kCount],
                             const Entries& best = {}) const {
    if (!is_unsplit()) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        partial_.write(head * num_rows_ + row, quad + i * kStride, partials[i], best);
      return;
    }
    RowQuads<kCount> result = joined(partials);
    if constexpr (kHasStates) output_.template add_entries<kStride>(head, quad, result, best);
    output_.template write<kStride>(head, row, quad, result);
  }

  // Combines the tile's splits, after all rows of this split are written. All threads of the team
  // take part. With may_wait, the CTA has nothing to do afterwards.
  LAZYROPE_DEVICE void finish(bool may_wait, SharedPtr flags) const {
    if (!is_unsplit())
      combine(params_.work, params_.out, params_.lse, ValueScales(params_.pool),
              ResultExtras<Spec>(params_), rows_, split_, num_combiners_, num_rows_, may_wait,
              flags);
  }

 private:
  // Returns quads of one row, whose statistics are the same, as one result.
  template <int kCount>
  LAZYROPE_DEVICE static RowQuads<kCount> joined(const RowQuad (&quads)[kCount]) {
    RowQuads<kCount> row;
    row.stats = quads[0].stats;
#pragma unroll
    for (int i = 0; i < 4 * kCount; ++i) row.value[i] = quads[i / 4].value[i % 4];
    return row;
  }

  // This function is not inlined, because it would cost the main loop registers. Its parameters are
  // values: references would put them in memory, and the CTA would wait for them at its end.
  LAZYROPE_DEVICE_CALL static void combine(WorkView work, OutputTensor out, LseTensor lse,
                                           ValueScales scales, ResultExtras<Spec> extras,
                                           WorkTileRows rows, KvSplit split, int32 num_combiners,
                                           int32 num_rows, bool may_wait, SharedPtr flags) {
    const Output output = ResultRows<Spec>::make(out, lse, scales, extras, rows);
    const Partials partial(work, split);
    const TileCombiner<Spec, kSliceWidth> tile(output, partial, num_rows, rows.num_heads,
                                               split.count);
    CombineScheduler<Team>(work, split, num_combiners, flags).combine(tile, may_wait);
  }

  const AttendParams& params_;
  int32 num_rows_;
  WorkTileRows rows_;
  KvSplit split_;
  int32 num_combiners_;
  Output output_;
  Partials partial_;
};

}  // namespace lazyrope
