#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/engine/engine.h"

namespace lazyrope {

// The facts that lazyrope found on this machine, and the reasons for its choices.
struct Diagnosis {
  nlohmann::ordered_json facts;

  // Returns the facts as text for people.
  std::string text() const;
};

// Looks for NVRTC, the driver, GPUs, the emulator's compiler and the cache. A missing one is reported as a fact, not thrown.
Diagnosis doctor(Engine& engine);

}  // namespace lazyrope
