#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>

#include "runtime/attention.h"

namespace lazyrope {

// What a plan() or update() was given, as Python objects: kept as long as the step may refer to
// them.
struct StepArguments {
  pybind11::object q_indptr;
  pybind11::object q_position;
  pybind11::object segment_indptr;
  pybind11::object base;
  pybind11::object start;
  pybind11::object length;
  pybind11::object first_page;
  pybind11::object pages;
  pybind11::object lead;
};

struct PyStep {
  std::unique_ptr<Step> step;
  StepArguments arguments;

  void update(StepArguments given, bool check, const std::optional<std::uintptr_t>& stream);
};

struct AppendArguments {
  pybind11::object indptr;
  pybind11::object first;
  pybind11::object first_page;
  pybind11::object lead;
  pybind11::object pages;
};

struct PyAppendStep {
  std::unique_ptr<AppendStep> step;
  AppendArguments arguments;

  void update(AppendArguments given, bool check, const std::optional<std::uintptr_t>& stream);
};

// Capacity given as a mapping of requests, segments, query_tokens and tokens_per_request; what is
// missing, or None as a whole, is as much as the arguments take.
StepCapacity capacity_of(const pybind11::object& capacity, const StepArguments& arguments);

PoolFormat format_of(int page_size, const std::string& layout);

// The stream given as a number, or else the one on which the tensor's framework works now.
Stream stream_of(const std::optional<std::uintptr_t>& given, const class DlpackTensor& tensor);

}  // namespace lazyrope
