// Keys and values stored as elements of their own type.
//
// A store converts a run of kColumns columns of a row for the pool. Rotated columns are given in
// fp32, others as they were loaded. The store multiplies them by `inverse`. kScaled tells whether
// `inverse` can differ from 1. Loaded is a run as it was loaded, and elements() returns it in 16
// bits, for the rotation.
#pragma once

#include "tile/element.cuh"

namespace lazyrope {

template <class Element>
struct SameStore {
  static constexpr bool kScaled = false;
  template <int kColumns>
  using Run = Words<kColumns / 2>;
  template <int kColumns>
  using Loaded = Run<kColumns>;

  template <int kColumns>
  LAZYROPE_DEVICE static Run<kColumns> elements(Loaded<kColumns> loaded) {
    return loaded;
  }

  template <int kColumns>
  LAZYROPE_DEVICE static Run<kColumns> rotated(const float* x, float) {
    Run<kColumns> run;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) run.word[i] = Element::pack(x[2 * i], x[2 * i + 1]);
    return run;
  }

  template <int kColumns>
  LAZYROPE_DEVICE static Run<kColumns> unrotated(Words<kColumns / 2> run, float) {
    return run;
  }
};

}  // namespace lazyrope
