// Masks a tile of scores.
#pragma once

#include "isa/memory.cuh"
#include "ops/mask/interval.cuh"
#include "tile/warp_product.cuh"

namespace lazyrope {

// Sets score (i, j) to -infinity unless begin <= j < end and query i sees the key at logical
// position `position` + j. `positions` holds the positions of the warp's rows in shared memory.
// `scores` is an accumulator tile (TileAccess, tile/warp_product.cuh), and each lane masks its own
// registers.
template <class Mask, class Scores>
LAZYROPE_DEVICE void mask_scores(Scores& scores, SharedPtr positions, int32 position, int32 begin,
                                 int32 end) {
  using Access = TileAccess<Scores>;
#pragma unroll
  for (int m = 0; m < Access::kRowTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int32 query = ld_shared<int32>(positions + Access::row(m, h) * 4);
      const int32 first = visible_begin<Mask>(query, position, begin, end) - Access::first_column();
      const int32 last = visible_end<Mask>(query, position, end) - Access::first_column();
      // The visible columns of a lane are bits of one word, because the compiler can make
      // predicates of seven bits at a time.
      const uint32 visible = Access::columns_before(last) & ~Access::columns_before(first);
      static_assert(2 * Access::kColumnTiles <= 32);
#pragma unroll
      for (int n = 0; n < Access::kColumnTiles; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = Access::at(scores, m, n, 2 * h + i);
          if ((visible & 1u << (2 * n + i)) == 0) score = -infinity_f32();
        }
    }
}

}  // namespace lazyrope
