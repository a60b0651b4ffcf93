// Keys and values stored in 8 bits: narrow(x * inverse). Runs and `inverse` are as in
// ops/store/same.cuh.
#pragma once

#include "tile/fp8.cuh"

namespace lazyrope {

template <class Element, class Format>
struct Fp8Store {
  static constexpr bool kScaled = true;
  template <int kColumns>
  using Run = Bytes<kColumns>;
  template <int kColumns>
  using Loaded = Words<kColumns / 2>;

  template <int kColumns>
  LAZYROPE_DEVICE static Loaded<kColumns> elements(Loaded<kColumns> loaded) {
    return loaded;
  }

  template <int kColumns>
  LAZYROPE_DEVICE static Run<kColumns> rotated(const float* x, float inverse) {
    Run<kColumns> run;
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
      run.byte[i] = static_cast<uint8>(Format::narrow(x[i] * inverse));
    return run;
  }

  template <int kColumns>
  LAZYROPE_DEVICE static Run<kColumns> unrotated(Loaded<kColumns> given, float inverse) {
    float x[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      const FloatPair pair = Element::unpack(given.word[i]);
      x[2 * i] = pair.low;
      x[2 * i + 1] = pair.high;
    }
    return rotated<kColumns>(x, inverse);
  }
};

}  // namespace lazyrope
