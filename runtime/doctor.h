#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"

namespace lazyrope {

// The facts that lazyrope found on this machine, and the reasons for its choices.
struct Diagnosis {
  nlohmann::ordered_json facts;

  // Returns the facts as text for people.
  std::string text() const;

  // Returns why the values of environment variables cannot be used.
  std::vector<std::string> variable_faults() const;
};

// Looks for NVRTC, the driver, GPUs, the emulator's compiler and the cache. A missing one is
// reported as a fact, not thrown, and so are the variables that have bad values in the engine's
// config.
Diagnosis doctor(Engine& engine);

// Returns the diagnosis of the process's engine. If a variable has a bad value there is no such
// engine, and the diagnosis is that of one with the default in its place.
Diagnosis doctor();

}  // namespace lazyrope
