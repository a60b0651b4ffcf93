#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "codegen/kernel_config.h"

namespace lazyrope {

// A workload with which configs are timed.
struct TuningWorkload {
  int batch = 1;
  int query_tokens = 1;  // per request
  int context = 0;       // document tokens per request; its own query tokens come after them
  int doc_tokens = 1024;

  bool operator==(const TuningWorkload&) const = default;
};

// Returns a text such as "64 x 1 over 4096".
std::string describe(const TuningWorkload& workload);

// The outcome of one config.
struct TuningTrial {
  std::string name;             // the varied part of the config, in words
  KernelConfig config;          // the whole config
  std::vector<double> us = {};  // median microseconds of each workload
  double gain = 0;              // saved share of the default's time
  double noise = 0;             // the part of the gain that may be chance
  std::string rejection = {};   // the reason why the measurement was not completed, if so

  bool operator==(const TuningTrial&) const = default;
};

// One field of the config, which is tuned on its own.
struct TuningTask {
  std::string name;  // "decode", "prefill", "min_split_blocks"
  std::vector<TuningWorkload> workloads;
  std::vector<TuningTrial> trials;  // the default first
  std::size_t chosen = 0;

  bool operator==(const TuningTask&) const = default;
};

// A record of a tuning run: the machine, the measurements, and the chosen config.
struct Tuning {
  std::string spec;  // the attention in words
  std::string arch;
  std::string gpu;
  int sm_count = 0;
  std::string driver;
  std::string compiler;  // compiler of the chosen attend kernels
  std::string library;   // lazyrope's version
  std::string date;      // in UTC
  KernelConfig config;
  std::vector<TuningTask> tasks;
  double compile_seconds = 0;
  double measure_seconds = 0;
  double seconds = 0;  // the total

  bool operator==(const Tuning&) const = default;
};

// The name that the cache's list gives an entry with a tuning record.
inline constexpr const char* kTuningEntry = "tuning";

nlohmann::json json_of(const Tuning& tuning);
// Reads a record. Throws CacheError if a field is missing or has the wrong type.
Tuning tuning_of(const nlohmann::json& json);

// Returns a line for each task, with the choice and its gain, and a line of times.
std::string summary(const Tuning& tuning);

}  // namespace lazyrope
