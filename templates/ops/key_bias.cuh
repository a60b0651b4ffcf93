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

// How a key's bias is added. Decode, and the prefill kernels that cannot do better, add a number to
// each score (ops/key_bias/added.cuh). Elsewhere the score product has 16 more columns. A key has
// its bias there, and a query has ones:
//   (q, 1) . (k, bias) = q . k + bias.
// The bias is a sum of three bf16 numbers, which have the 24 significant bits of an fp32 number.
// The product needs scores that are logits, without a softcap after it.
//
// The operand's two chunks of eight columns are one in memory: their distance is 0. So each number
// counts twice, and is half of a part of the bias. The 64 rows of ones are one core matrix.

// The biases of a block's keys as columns of the score product. One warp writes them.
template <int kKeys>
class KeyBiasColumns;

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
