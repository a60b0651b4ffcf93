// The kernel adds no bias to scores.
#pragma once

namespace lazyrope {

inline constexpr bool kHasKeyBias = false;

}  // namespace lazyrope
