#pragma once

namespace lazyrope {

// The rule by which compile() chooses the config of an attention for the present GPU.
enum class Tune {
  kNever,    // the default config
  kStored,   // the config in this GPU's tuning record, or the default without a record
  kMeasure,  // as kStored, but tunes first if there is no record: up to a minute on an idle GPU
};

}  // namespace lazyrope
