#pragma once

#include "runtime/engine/tuning.h"

namespace lazyrope {

inline KernelConfig example_config(int stages) {
  return {{1, 4, 16, 16, 16, stages, 2}, {4, 1, 32, 64, 32, 2, 1}};
}

// Returns a record of three configs: the second one was the fastest, and the third was rejected.
inline Tuning example_tuning() {
  Tuning tuning;
  tuning.spec = "head_dim 64, 2 KV heads";
  tuning.arch = "sm_90a";
  tuning.gpu = "fake GPU";
  tuning.sm_count = 4;
  tuning.driver = "fake driver";
  tuning.compiler = "nvrtc 13.0-abc";
  tuning.library = "0.1.0";
  tuning.date = "2026-11-22T10:00:00Z";
  tuning.config = example_config(3);
  tuning.tasks = {
      {.name = "decode",
       .workloads = {{1, 1, 16384, 1024}, {64, 1, 4096, 1024}},
       .trials = {{.name = "2 stages", .config = example_config(2), .us = {28.5, 240.25}},
                  {.name = "3 stages",
                   .config = example_config(3),
                   .us = {27.5, 230.125},
                   .gain = 0.039,
                   .noise = 0.004},
                  {.name = "4 stages",
                   .config = example_config(4),
                   .rejection = "spills registers"}},
       .chosen = 1}};
  tuning.compile_seconds = 5.5;
  tuning.measure_seconds = 1.25;
  tuning.seconds = 7;
  return tuning;
}

}  // namespace lazyrope
