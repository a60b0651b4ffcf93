#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "codegen/error.h"
#include "runtime/spec/spec.h"
#include "tools/command.h"

namespace lazyrope {

// The options that describe attentions: --model, or the fields of one attention.
struct SpecOptions {
  std::vector<std::string> models;
  std::optional<int> max_model_len;
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
  std::optional<std::string> key_form;
  std::optional<std::string> append_form;
  std::optional<double> scale;
  std::optional<int> window;
  std::optional<int> chunk;
  std::optional<double> softcap;
  std::vector<double> temperature;  // beta, interval and offset, or none
  bool sinks = false;
  bool batch_invariant = false;
  bool cascade = false;
  bool page_mass = false;
  bool key_bias = false;
  bool packed_prefill = false;
  bool states = false;
  std::optional<std::string> compute;
};

struct NamedSpec {
  std::string name;  // the model's, or one made from the spec; unique
  AttentionSpec spec;
};

void add_spec_options(CLI::App& app, SpecOptions& options);

// Returns the attentions that the options describe, at least one. Throws UsageError, and SpecError
// for the file of a model, also if it cannot be read.
std::vector<NamedSpec> specs_of(const SpecOptions& options);

// Returns what `make` returns, which makes something of the attentions. A SpecError becomes a
// UsageError if the options describe the attention by its fields. The file of a model is no part of
// the command line, so what it asks for can fail, but is no wrong usage.
template <class Make>
auto checked_as_options(const SpecOptions& options, const Make& make) {
  try {
    return make();
  } catch (const SpecError& error) {
    if (options.models.empty()) throw UsageError(error.what());
    throw;
  }
}

// Returns the one attention that the options describe. Throws UsageError if there are several.
NamedSpec only_spec_of(const SpecOptions& options);

}  // namespace lazyrope
