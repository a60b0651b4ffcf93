// Keys and values stored as elements of their own type.
//
// A store takes runs of kColumns columns of a row: turned ones in fp32, others as they came. The
// pool holds what is given times `inverse`, of which kScaled says whether it is ever another
// than 1.
#pragma once

#include "tile/element.cuh"

namespace lazyrope {

template <class Element>
struct SameStore {
  static constexpr bool kScaled = false;
  template <int kColumns>
  using Run = Words<kColumns / 2>;

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
