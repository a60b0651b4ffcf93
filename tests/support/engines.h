#pragma once

#include <filesystem>
#include <string>

#include "runtime/engine/engine.h"

namespace lazyrope {

// Returns a config that uses the NVRTC of the Python environment that built lazyrope. An empty
// `cache_dir` disables the disk cache.
inline Config test_config(const std::filesystem::path& cache_dir = {}) {
  Config config;
  config.cache_dir = cache_dir.string();
  config.nvrtc_directories = {LAZYROPE_TEST_NVRTC_DIR};
  return config;
}

// Returns an engine whose disk cache all tests of a build share, for tests that need a kernel but
// do not test its compilation.
inline Engine& shared_engine() {
  static Engine engine(test_config(LAZYROPE_TEST_CACHE_DIR));
  return engine;
}

}  // namespace lazyrope
