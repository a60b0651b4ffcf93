// The kernel measures no page mass.
#pragma once

namespace lazyrope {

inline constexpr bool kMeasuresPageMass = false;

}  // namespace lazyrope
