#pragma once

#include <filesystem>
#include <string>

#include "runtime/engine/engine.h"

namespace lazyrope {

// Compiles with the NVRTC of the Python that built lazyrope; keeps nothing on disk unless told to.
inline Config test_config(const std::filesystem::path& cache_dir = {}) {
  Config config;
  config.cache_dir = cache_dir.string();
  config.nvrtc_directories = {LAZYROPE_TEST_NVRTC_DIR};
  return config;
}

// An engine whose cache all tests of a build share, for kernels that are only a means to an end.
inline Engine& shared_engine() {
  static Engine engine(test_config(LAZYROPE_TEST_CACHE_DIR));
  return engine;
}

}  // namespace lazyrope
