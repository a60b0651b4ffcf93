// Products of eight columns add up the weights of each run of a block, for page masses. These types
// hold their sums.
#pragma once

#include "isa/wgmma.cuh"
#include "ops/page_mass.cuh"
#include "pipeline/block_table.cuh"

namespace lazyrope {

// kKeys are the keys of a block.
template <int kKeys>
struct BlockRunSums {
  Accumulator<8> sums;
  RunRange runs;  // the runs of the block of the sums

  template <class Table>
  LAZYROPE_DEVICE void name_runs(const Table& table, int32 block, const BlockInfo& info) {
    runs = {table.first_run(block), runs_before<kKeys>(info.end)};
  }
};

struct NoRunSums {
  template <class Table>
  LAZYROPE_DEVICE void name_runs(const Table&, int32, const BlockInfo&) {}
};

}  // namespace lazyrope
