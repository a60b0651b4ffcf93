// The attention mass of pages: what attend stores for it (abi/page_mass.h). Only a kernel whose
// Spec has kMeasuresPageMass stores anything. ops/page_mass/measured.cuh is then part of it;
// otherwise ops/page_mass/none.cuh is.
#pragma once

#include "ops/query_rows.cuh"

namespace lazyrope {

// Consecutive runs, by their numbers among the runs of a request.
struct RunRange {
  int32 first;
  int32 count;
};

// Returns how many of a tile's runs have slots before `end`. The tile has kSlots slots.
template <int kSlots>
LAZYROPE_DEVICE int32 runs_before(int32 end) {
  return ceil_div(smaller(end, kSlots), kRunSlots);
}

template <class Spec>
class PageMass;

}  // namespace lazyrope
