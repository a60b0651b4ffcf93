// Products of one warpgroup by wgmma: 64 query rows. Whoever asks for one waits for it.
#pragma once

#include "tile/wgmma_tile.cuh"

namespace lazyrope {

struct Bf16;

template <class Element>
struct WgmmaElement {
  using Type = WgmmaF16;
};
template <>
struct WgmmaElement<Bf16> {
  using Type = WgmmaBf16;
};

template <class Element, int kHeadDim>
struct WgmmaProduct {
  using Tile = WgmmaTile<kHeadDim>;  // of queries, keys and values
  using Type = typename WgmmaElement<Element>::Type;
  static constexpr bool kScaled = false;

  // scores = queries x keys^T, of kKeys keys.
  template <int kKeys>
  LAZYROPE_DEVICE static void multiply_query_key(Accumulator<kKeys>& scores, SharedPtr queries,
                                                 SharedPtr keys) {
    const SharedDescriptor a = Tile::columns(queries);
    const SharedDescriptor b = Tile::columns(keys);
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step)
      wgmma_m64k16<Type, kKeys, Major::kK, Major::kK>(scores, a + Tile::column_step(step),
                                                      b + Tile::column_step(step), step > 0);
  }

  // rows += weights x values.
  template <int kKeys>
  LAZYROPE_DEVICE static void multiply_weight_value(Accumulator<kHeadDim>& rows,
                                                    const OperandA (&weights)[kKeys / 16],
                                                    SharedPtr values) {
    const SharedDescriptor b = Tile::rows(values);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      wgmma_m64k16<Type, kHeadDim, Major::kMN>(rows, weights[step], b + Tile::row_step(step), true);
  }

  template <int kKeys>
  LAZYROPE_DEVICE static void pack(OperandA (&packed)[kKeys / 16],
                                   const Accumulator<kKeys>& weights) {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        packed[step][i] = Element::pack(weights[8 * step + 2 * i], weights[8 * step + 2 * i + 1]);
  }
};

}  // namespace lazyrope
