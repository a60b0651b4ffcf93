// Products of a warpgroup by wgmma with keys and values of 8 bits, which warps of the producer
// widen in shared memory first: tensor cores have no products of 16-bit with 8-bit elements.
#pragma once

#include "tile/fp8.cuh"
#include "tile/wgmma_product.cuh"

namespace lazyrope {

template <class Element, class Format, int kHeadDim>
struct WidenedWgmmaProduct : WgmmaProduct<Element, kHeadDim> {
  using Tile = WgmmaTile<kHeadDim>;
  static constexpr bool kScaled = true;
  static constexpr bool kWidens = true;

  // The stored bytes of 16 rows are contiguous and fill the second half of the kRunBytes that the
  // rows take as 16-bit elements.
  static constexpr int32 kRunRows = 16;
  static constexpr int32 kRunBytes = Tile::bytes(kRunRows);
  static constexpr int32 kStoredAt = kRunBytes / 2;

  // A warp widens kRuns runs of 16 rows in place: it reads all of them before it writes any.
  template <int kRuns>
  LAZYROPE_DEVICE static void widen(SharedPtr runs) {
    const int32 row = lane_index() / kRowLanes;
    Chunk chunks[kRuns * kSteps][kRounds];
#pragma unroll
    for (int32 round = 0; round < kRounds; ++round) {
      const SharedPtr from = runs + (kStoredAt + row * kHeadDim + chunk(round) * 16);
#pragma unroll
      for (int32 step = 0; step < kRuns * kSteps; ++step)
        chunks[step][round] = ld_shared<Chunk>(from + step / kSteps * kRunBytes +
                                               step % kSteps * kStepRows * kHeadDim);
    }
    bar_warp_sync();
#pragma unroll
    for (int32 round = 0; round < kRounds; ++round) {
      const SharedPtr to = Tile::chunk(runs, row, 2 * chunk(round));
#pragma unroll
      for (int32 step = 0; step < kRuns * kSteps; ++step) {
        const auto& [word] = chunks[step][round];
        const SharedPtr low = to + step * Tile::bytes(kStepRows);
        st_shared(low, Format::template widen_in_order<Element>(word[0], word[1]));
        st_shared(Tile::template offset_by<16>(low),
                  Format::template widen_in_order<Element>(word[2], word[3]));
      }
    }
  }

 private:
  static constexpr int32 kRowChunks = kHeadDim / 16;
  // kRowLanes lanes take neighbouring chunks of a row, and the lanes of the next row take other
  // chunks. Eight lanes then read from different banks, and write to different banks.
  static constexpr int32 kRowLanes = kRowChunks % 4 == 0 ? 4 : 2;
  static constexpr int32 kRounds = kRowChunks / kRowLanes;
  static constexpr int32 kStepRows = kWarpThreads / kRowLanes;
  static constexpr int32 kSteps = kRunRows / kStepRows;

  LAZYROPE_DEVICE static int32 chunk(int32 round) {
    const uint32 of_row = static_cast<uint32>(lane_index() / kRowLanes + round) % kRounds;
    return static_cast<int32>(of_row) * kRowLanes + lane_index() % kRowLanes;
  }
};

}  // namespace lazyrope
