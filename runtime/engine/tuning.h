#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "codegen/kernel_config.h"

namespace lazyrope {

// Requests that a config's time is measured with.
struct TuningWorkload {
  int batch = 1;
  int query_tokens = 1;  // of a request
  int context = 0;       // tokens of a request's documents; its own query tokens come after them
  int doc_tokens = 1024;

  bool operator==(const TuningWorkload&) const = default;
};

// "64 x 1 over 4096".
std::string describe(const TuningWorkload& workload);

// What came of one config.
struct TuningTrial {
  std::string name;             // what of the config is on trial, in words
  KernelConfig config;          // the whole
  std::vector<double> us = {};  // of each workload, the median
  double gain = 0;              // share of the default's time that it saves
  double noise = 0;             // what of that may be chance
  std::string rejection = {};   // why it was not measured to the end; empty if it was

  bool operator==(const TuningTrial&) const = default;
};

// One field of the config that is tuned on its own.
struct TuningTask {
  std::string name;  // "decode", "prefill", "min_split_blocks"
  std::vector<TuningWorkload> workloads;
  std::vector<TuningTrial> trials;  // the default first
  std::size_t chosen = 0;

  bool operator==(const TuningTask&) const = default;
};

// A record: what was measured, where, and the config that was chosen for it.
struct Tuning {
  std::string spec;  // in words
  std::string arch;
  std::string gpu;
  int sm_count = 0;
  std::string driver;
  std::string compiler;  // of the chosen attend kernels
  std::string library;   // version of lazyrope
  std::string date;      // UTC
  KernelConfig config;
  std::vector<TuningTask> tasks;
  double compile_seconds = 0;
  double measure_seconds = 0;
  double seconds = 0;  // in all

  bool operator==(const Tuning&) const = default;
};

// How the cache's list calls an entry that holds a record.
inline constexpr const char* kTuningEntry = "tuning";

nlohmann::json json_of(const Tuning& tuning);
// CacheError where something is missing or has the wrong type.
Tuning tuning_of(const nlohmann::json& json);

// What was chosen, by how much and in how long: a line for each task, and one of the time.
std::string summary(const Tuning& tuning);

}  // namespace lazyrope
