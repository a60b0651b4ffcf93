// Keys and values that move inside a pool of 8 bits. Rotated columns are rounded as
// ops/store/fp8.cuh rounds, and all others keep their bits. The scales of a pool do not matter
// here, for source and target have the same.
#pragma once

#include "ops/store/fp8.cuh"

namespace lazyrope {

template <class Element, class Format>
struct MovedFp8Store {
  static constexpr bool kScaled = false;
  template <int kColumns>
  using Run = Bytes<kColumns>;
  template <int kColumns>
  using Loaded = Bytes<kColumns>;

  template <int kColumns>
  LAZYROPE_DEVICE static Words<kColumns / 2> elements(Loaded<kColumns> loaded) {
    static_assert(kColumns <= 8);
    uint32 bytes[2] = {};
#pragma unroll
    for (int i = 0; i < kColumns; ++i) bytes[i / 4] |= uint32{loaded.byte[i]} << (8 * (i % 4));
    const Chunk widened = Format::template widen_in_order<Element>(bytes[0], bytes[1]);
    Words<kColumns / 2> run;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) run.word[i] = widened.word[i];
    return run;
  }

  template <int kColumns>
  LAZYROPE_DEVICE static Run<kColumns> rotated(const float* x, float) {
    return Fp8Store<Element, Format>::template rotated<kColumns>(x, 1.0f);
  }

  template <int kColumns>
  LAZYROPE_DEVICE static Run<kColumns> unrotated(Loaded<kColumns> loaded, float) {
    return loaded;
  }
};

}  // namespace lazyrope
