#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/engine/engine.h"

namespace lazyrope {

// What lazyrope found on this machine, and why it chose what it chose.
struct Diagnosis {
  nlohmann::ordered_json facts;

  std::string text() const;
};

// Looks for NVRTC, the driver, GPUs and the cache. Reports what is missing; throws nothing for it.
Diagnosis doctor(Engine& engine);

}  // namespace lazyrope
