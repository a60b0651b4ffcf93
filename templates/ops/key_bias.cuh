// The bias of keys (abi/key_bias.h). Only a kernel whose Spec has kHasKeyBias adds one.
// ops/key_bias/added.cuh is then part of it; otherwise ops/key_bias/none.cuh is.
#pragma once

#include "abi/key_bias.h"
#include "isa/math.cuh"
#include "ops/compile_time.cuh"

namespace lazyrope {

// The launch parameters of an attend kernel.
template <class Params, bool kHasKeyBias>
struct SelectParams {
  using Type = Params;
};
template <class Params>
struct SelectParams<Params, true> {
  using Type = BiasedParams<Params>;
};

// Adds nothing, and leaves the factor of scores as it is.
struct NoKeyBias {
  template <class Scores, class Scale>
  LAZYROPE_DEVICE Scale add(Scores&, const Scale& scale) const {
    return scale;
  }
};

// The ring of biases in shared memory that cp.async fills for one warp.
template <int kKeys, int kTiles>
class KeyBiasRing;

// The biases of a tile of scores, in registers: each lane has those of two keys of each 64, or
// those of the keys of its own rows of a transposed tile.
template <int kKeys>
class RowKeyBias;
template <class Lanes, int kKeys, int kHeads, int kHeadRows>
class ColumnKeyBias;

}  // namespace lazyrope
