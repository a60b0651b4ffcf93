#pragma once

namespace lazyrope {

// By which config an attention is compiled for the present GPU.
enum class Tune {
  kNever,    // the default one
  kStored,   // the one that tuning chose on this GPU, if there is a record of that in the cache
  kMeasure,  // the same, and where there is no record, tunes first: seconds to a minute on an idle
             // GPU
};

}  // namespace lazyrope
