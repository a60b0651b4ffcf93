#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/spec/spec.h"

namespace lazyrope {

// The options that describe attentions: --model, or the fields of one attention.
struct SpecOptions {
  std::vector<std::string> models;
  int tensor_parallel = 1;
  std::optional<int> head_dim;
  std::optional<int> q_heads;
  std::optional<int> kv_heads;
  std::optional<std::string> rope;
  std::vector<std::string> rope_parameters;  // key=value
  std::optional<int> rotary_dim;
  std::optional<std::string> dtype;
  std::optional<std::string> kv_dtype;
  std::optional<std::string> mask;
  std::optional<std::string> query_form;
  std::optional<std::string> append_form;
  std::optional<double> scale;
  std::optional<int> window;
  std::optional<double> softcap;
  bool sinks = false;
  bool batch_invariant = false;
};

struct NamedSpec {
  std::string name;  // the model's, or one made from the spec; unique
  AttentionSpec spec;
};

void add_spec_options(CLI::App& app, SpecOptions& options);

// Returns the attentions that the options describe, at least one. Throws UsageError, or
// SpecError, also for a file that cannot be read.
std::vector<NamedSpec> specs_of(const SpecOptions& options);

// Returns the one attention that the options describe. Throws UsageError if there are several.
NamedSpec only_spec_of(const SpecOptions& options);

}  // namespace lazyrope
