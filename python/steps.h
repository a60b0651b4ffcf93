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
  pybind11::object mask_base;
  pybind11::object mass_tokens;
  pybind11::object memory;
};

// The arguments of the latest plan() or update(), as Python objects. The step refers to their
// memory, so it keeps them alive.
struct StepArguments {
  pybind11::object q_indptr;
  pybind11::object q_position;
  SegmentArguments segments;
  pybind11::object pages;
};

// The attributes of a lazyrope.TokenSpans, and the page lists of the same call.
struct AppendArguments {
  pybind11::object indptr;
  pybind11::object start;
  pybind11::object first_page;
  pybind11::object lead;
  pybind11::object pages;
};

// The attributes of a lazyrope.TokenSlots.
struct SlotArguments {
  pybind11::object slot_mapping;
  pybind11::object index;
};

// These functions throw SpecError if the object lacks an attribute.
SegmentArguments segments_of(pybind11::handle segments);
AppendArguments append_arguments_of(pybind11::handle spans, pybind11::object pages);
SlotArguments slots_of(pybind11::handle slots);

// A step that a Python object owns. Freeing device memory may wait for the device, so the
// destructor releases the interpreter's lock.
template <class AnyStep>
struct OwnedStep {
  explicit OwnedStep(std::unique_ptr<AnyStep> made) : step(std::move(made)) {}
  OwnedStep(OwnedStep&&) noexcept = default;
  OwnedStep& operator=(OwnedStep&&) = delete;
  // NOLINTNEXTLINE(bugprone-exception-escape): pybind11's internals outlive every step
  ~OwnedStep() {
    const pybind11::gil_scoped_release unlocked;
    step.reset();
  }

  std::unique_ptr<AnyStep> step;
};

// A batch that a Python object owns. Freeing its memory may wait for the device too.
struct PyBatch {
  explicit PyBatch(Batch made) : batch(std::make_unique<Batch>(std::move(made))) {}
  PyBatch(PyBatch&&) noexcept = default;
  PyBatch& operator=(PyBatch&&) = delete;
  // NOLINTNEXTLINE(bugprone-exception-escape): pybind11's internals outlive every batch
  ~PyBatch() {
    const pybind11::gil_scoped_release unlocked;
    batch.reset();
  }

  // Calls Batch::upload(). Other threads run while it waits for an earlier copy.
  StepTensors upload(int page_size, Stream stream) const;
  // Returns the given stream, or else the current stream of the framework of `pages`.
  Stream stream(const std::optional<std::uintptr_t>& given) const;

  std::unique_ptr<Batch> batch;
  pybind11::object pages;
};

struct PyStep : OwnedStep<Step> {
  using OwnedStep::OwnedStep;

  StepArguments arguments;
  pybind11::object batch;  // set instead of the arguments if the latest update took a batch

  void update(StepArguments given, bool check, const std::optional<std::uintptr_t>& stream);
  void update(PyBatch& given, bool check, const std::optional<std::uintptr_t>& stream);
};

struct PyAppendStep : OwnedStep<AppendStep> {
  using OwnedStep::OwnedStep;

  AppendArguments arguments;
  SlotArguments slots;  // set instead of the arguments if the latest update took slots

  void update(AppendArguments given, bool check, const std::optional<std::uintptr_t>& stream);
  void update(SlotArguments given, bool check, const std::optional<std::uintptr_t>& stream);
};

// Reads a lazyrope.StepCapacity. Throws SpecError if the object is something else.
StepCapacity step_capacity_from(pybind11::handle capacity);
// Reads a lazyrope.StepCapacity. Returns for None the least capacity that holds the arguments.
StepCapacity capacity_of(const pybind11::object& capacity, const StepArguments& arguments);
// Reads a lazyrope.AppendCapacity. Throws SpecError if the object is something else.
AppendCapacity append_capacity_from(pybind11::handle capacity);
// Makes a lazyrope.StepCapacity.
pybind11::object capacity_object(const StepCapacity& capacity);

inline constexpr int kPoolRank = 4;

// Throws SpecError if the layout is neither "NHD" nor "HND".
PoolFormat format_of(int page_size, const std::string& layout);

// Returns the given stream, or else the current stream of the tensor's framework.
Stream stream_of(const std::optional<std::uintptr_t>& given, const class DlpackTensor& tensor);

}  // namespace lazyrope
