#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/attention/attention.h"

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

// Defines a method of Python's that takes the StepArguments one by one and then `rest`, which
// begins with py::kw_only().
template <class Type, class Result, class Self, class... Others, class... Rest>
void define_with_step_arguments(Type& type, const char* name,
                                Result (*call)(Self, StepArguments, Others...),
                                const Rest&... rest) {
  using pybind11::arg;
  using pybind11::object;
  type.def(
      name,
      [call](Self self, object q_indptr, object q_position, object segment_indptr, object base,
             object start, object length, object first_page, object pages, object lead,
             Others... others) {
        return call(self,
                    {std::move(q_indptr), std::move(q_position), std::move(segment_indptr),
                     std::move(base), std::move(start), std::move(length), std::move(first_page),
                     std::move(pages), std::move(lead)},
                    std::forward<Others>(others)...);
      },
      arg("q_indptr"), arg("q_position"), arg("segment_indptr"), arg("base"), arg("start"),
      arg("length"), arg("first_page"), arg("pages"), arg("lead") = pybind11::none(), rest...);
}

// A step as Python holds it. Freeing device memory may wait for the device, so it lets other
// threads run.
template <class AnyStep>
struct HeldStep {
  explicit HeldStep(std::unique_ptr<AnyStep> made) : step(std::move(made)) {}
  HeldStep(HeldStep&&) noexcept = default;
  HeldStep& operator=(HeldStep&&) = delete;
  // NOLINTNEXTLINE(bugprone-exception-escape): pybind11 has its internals while a step lives
  ~HeldStep() {
    const pybind11::gil_scoped_release unlocked;
    step.reset();
  }

  std::unique_ptr<AnyStep> step;
};

struct PyStep : HeldStep<Step> {
  using HeldStep::HeldStep;

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

struct PyAppendStep : HeldStep<AppendStep> {
  using HeldStep::HeldStep;

  AppendArguments arguments;

  void update(AppendArguments given, bool check, const std::optional<std::uintptr_t>& stream);
};

// Capacity given as a mapping of requests, segments, query_tokens and tokens_per_request; what is
// missing, or None as a whole, is as much as the arguments take.
StepCapacity capacity_of(const pybind11::object& capacity, const StepArguments& arguments);
// Of one that says it all but tokens_per_request.
StepCapacity whole_capacity(const pybind11::object& capacity);

inline constexpr int kPoolRank = 4;

PoolFormat format_of(int page_size, const std::string& layout);

// The stream given as a number, or else the one on which the tensor's framework works now.
Stream stream_of(const std::optional<std::uintptr_t>& given, const class DlpackTensor& tensor);

}  // namespace lazyrope
