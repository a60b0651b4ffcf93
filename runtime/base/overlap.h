#pragma once

#include "runtime/base/tensor.h"

namespace lazyrope {

// Both functions decide by the strides alone: dimensions may be in any order, and strides may be 0
// or negative. They look for a whole-number solution of one linear equation. It is found, or shown
// not to exist, in a few steps if strides nest, as those of slices, splits, transpositions and
// interleavings of contiguous tensors do. For other strides the search ends after 4096 steps, about
// 0.2 ms, and counts as an overlap. A tensor that spans more than ByteRange::kMaxSpan bytes does
// too. Tensors whose ranges of bytes are apart take no search.

// Returns true if an element of `a` and an element of `b` have a byte in common.
bool share_memory(const TensorView& a, const TensorView& b);

// Returns true if two elements of the tensor have a byte in common, as those of an expanded tensor
// do.
bool overlaps_itself(const TensorView& tensor);

}  // namespace lazyrope
