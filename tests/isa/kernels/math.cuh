// Conformance kernels for arithmetic, element by element. The input is three arrays of `count`
// operands. The output is one array of results, or two if results are pairs.
#pragma once

#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "tests/isa/kernels/params.h"

namespace lazyrope {

LAZYROPE_DEVICE uint32 unary(Case which, float x) {
  switch (which) {
    case Case::kEx2:
      return float_as_bits(ex2_approx_ftz_f32(x));
    case Case::kLg2:
      return float_as_bits(lg2_approx_ftz_f32(x));
    case Case::kRcp:
      return float_as_bits(rcp_approx_ftz_f32(x));
    case Case::kSin:
      return float_as_bits(sin_approx_f32(x));
    case Case::kCos:
      return float_as_bits(cos_approx_f32(x));
    default:
      return float_as_bits(x);  // tests bits_as_float alone
  }
}

LAZYROPE_DEVICE FloatPair pair(Case which, uint32 a) {
  switch (which) {
    case Case::kFromBf16:
      return cvt_f32_bf16x2(a);
    case Case::kFromF16:
      return cvt_f32_f16x2(a);
    default:
      return {bits_as_float(a), infinity_f32()};
  }
}

LAZYROPE_DEVICE uint32 several(Case which, uint32 a, uint32 b, uint32 c) {
  const float x = bits_as_float(a);
  const float y = bits_as_float(b);
  switch (which) {
    case Case::kMax:
      return float_as_bits(max_f32(x, y));
    case Case::kMaxU16:
      return max_u16x2(a, b);
    case Case::kPermute:
      return prmt_b32(a, b, c);
    case Case::kToBf16:
      return cvt_rn_bf16x2_f32(x, y);
    case Case::kToF16:
      return cvt_rn_f16x2_f32(x, y);
    case Case::kFmaBf16:
      return fma_rn_bf16x2(a, b, c);
    case Case::kFmaF16:
      return fma_rn_f16x2(a, b, c);
    default:
      return unary(which, x);
  }
}

LAZYROPE_DEVICE bool gives_pairs(Case which) {
  return which == Case::kFromBf16 || which == Case::kFromF16 || which == Case::kBits;
}

LAZYROPE_DEVICE void conformance_kernel(const ConformanceParams& params) {
  const int32 count = params.count;
  const int32 step = grid_blocks() * block_threads();
  for (int32 i = block_index() * block_threads() + thread_index(); i < count; i += step) {
    const uint32 a = ld_global(params.input + i);
    if (gives_pairs(params.which)) {
      const FloatPair y = pair(params.which, a);
      st_global(params.output + i, float_as_bits(y.low));
      st_global(params.output + count + i, float_as_bits(y.high));
    } else {
      const uint32 b = ld_global(params.input + count + i);
      const uint32 c = ld_global(params.input + 2 * count + i);
      st_global(params.output + i, several(params.which, a, b, c));
    }
  }
}

}  // namespace lazyrope
