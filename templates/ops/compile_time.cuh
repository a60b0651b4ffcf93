// Types and numbers that are chosen when a kernel is compiled.
#pragma once

#include "abi/types.h"

namespace lazyrope {

template <bool kFirst, class First, class Second>
struct SelectType {
  using Type = First;
};
template <class First, class Second>
struct SelectType<false, First, Second> {
  using Type = Second;
};

// A number that the compiler knows before it inlines functions.
template <int32 kValue>
struct Constant {
  constexpr operator int32() const { return kValue; }
};

}  // namespace lazyrope
