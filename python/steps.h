#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/attention/attention.h"
#include "runtime/step/batch.h"

namespace lazyrope {

// The attributes of a lazyrope.Segments.
struct SegmentArguments {
  pybind11::object indptr;
  pybind11::object base;
  pybind11::object start;
  pybind11::object length;
  pybind11::object first_page;
  pybind11::object lead;
};

// What a plan() or update() was given, as Python objects. The step may refer to them, so it keeps
// them.
struct StepArguments {
  pybind11::object q_indptr;
  pybind11::object q_position;
  SegmentArguments segments;
  pybind11::object pages;
};

// The attributes of a lazyrope.TokenSpans, and the page lists.
struct AppendArguments {
  pybind11::object indptr;
  pybind11::object start;
  pybind11::object first_page;
  pybind11::object lead;
  pybind11::object pages;
};

// SpecError where the object has no such attributes.
SegmentArguments segments_of(pybind11::handle segments);
AppendArguments append_arguments_of(pybind11::handle spans, pybind11::object pages);

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

// A batch as Python holds it. Freeing its memory may wait for the device.
struct PyBatch {
  explicit PyBatch(Batch made) : batch(std::make_unique<Batch>(std::move(made))) {}
  PyBatch(PyBatch&&) noexcept = default;
  PyBatch& operator=(PyBatch&&) = delete;
  // NOLINTNEXTLINE(bugprone-exception-escape): as of HeldStep
  ~PyBatch() {
    const pybind11::gil_scoped_release unlocked;
    batch.reset();
  }

  // As Batch::upload(); other threads run while it waits for an earlier copy.
  StepTensors upload(int page_size, Stream stream) const;
  // The stream given as a number, or else the one on which the framework of `pages` works now.
  Stream stream(const std::optional<std::uintptr_t>& given) const;

  std::unique_ptr<Batch> batch;
  pybind11::object pages;
};

struct PyStep : HeldStep<Step> {
  using HeldStep::HeldStep;

  StepArguments arguments;
  pybind11::object batch;  // in place of the arguments, where the latest update took one

  void update(StepArguments given, bool check, const std::optional<std::uintptr_t>& stream);
  void update(PyBatch& given, bool check, const std::optional<std::uintptr_t>& stream);
};

struct PyAppendStep : HeldStep<AppendStep> {
  using HeldStep::HeldStep;

  AppendArguments arguments;

  void update(AppendArguments given, bool check, const std::optional<std::uintptr_t>& stream);
};

// From a lazyrope.StepCapacity. SpecError where it is something else.
StepCapacity step_capacity_from(pybind11::handle capacity);
// The same; None is as much as the arguments take.
StepCapacity capacity_of(const pybind11::object& capacity, const StepArguments& arguments);
// From a lazyrope.AppendCapacity.
AppendCapacity append_capacity_from(pybind11::handle capacity);
// To a lazyrope.StepCapacity.
pybind11::object capacity_object(const StepCapacity& capacity);

inline constexpr int kPoolRank = 4;

PoolFormat format_of(int page_size, const std::string& layout);

// The stream given as a number, or else the one on which the tensor's framework works now.
Stream stream_of(const std::optional<std::uintptr_t>& given, const class DlpackTensor& tensor);

}  // namespace lazyrope
