// The queries of a warp as a product reads them: kRowTiles tiles of 16 rows, 16 columns at a time,
// from shared memory or from registers.
#pragma once

#include "tile/shared_tile.cuh"

namespace lazyrope {

// Reads the queries from shared memory at each use, which takes no registers between uses. A
// product unrolls its loop over columns kUnrolled times.
template <class Product, int kRowTiles, int kUnrolled = 2>
class SharedQueries {
 public:
  static constexpr int kUnroll = kUnrolled;

  LAZYROPE_DEVICE SharedQueries() : fragment_{} {}
  LAZYROPE_DEVICE SharedQueries(SharedPtr tile, int32 lane)
      : fragment_(Product::query_fragment(tile, lane)) {}

  LAZYROPE_DEVICE void load(uint32 (&a)[kRowTiles][4], int sixteens) const {
    using Tile = typename Product::QueryTile;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
      Product::load_query(a[m], Tile::rows(Tile::columns(fragment_, sixteens), m));
  }

 private:
  SharedPtr fragment_;
};

// Keeps the queries in registers, so that products do not wait for loads.
template <class Product, int kRowTiles>
class RegisterQueries {
  static constexpr int kSixteens = Product::QueryTile::kSixteens;

 public:
  static constexpr int kUnroll = kSixteens;
  static constexpr int kRegisters = kSixteens * kRowTiles * 4;

  LAZYROPE_DEVICE RegisterQueries() : fragments_{} {}
  LAZYROPE_DEVICE RegisterQueries(SharedPtr tile, int32 lane) {
    const SharedQueries<Product, kRowTiles> shared(tile, lane);
#pragma unroll
    for (int step = 0; step < kSixteens; ++step) shared.load(fragments_[step], step);
  }

  LAZYROPE_DEVICE void load(uint32 (&a)[kRowTiles][4], int sixteens) const {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m][i] = fragments_[sixteens][m][i];
  }

 private:
  uint32 fragments_[kSixteens][kRowTiles][4];
};

// Selects RegisterQueries if they take at most kMax registers, else SharedQueries.
template <class Product, int kRowTiles, int kMax,
          bool kFits = (RegisterQueries<Product, kRowTiles>::kRegisters <= kMax)>
struct SelectQueries {
  using Type = RegisterQueries<Product, kRowTiles>;
};
template <class Product, int kRowTiles, int kMax>
struct SelectQueries<Product, kRowTiles, kMax, false> {
  using Type = SharedQueries<Product, kRowTiles>;
};

}  // namespace lazyrope
