#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "codegen/error.h"
#include "python/bindings.h"
#include "python/dlpack_tensor.h"
#include "python/log_bridge.h"
#include "python/steps.h"

namespace lazyrope {
namespace {

namespace py = pybind11;

int rows_of(const char* name, const py::object& tensor) {
  const DlpackTensor t(name, tensor);
  return t.view().rank > 0 ? static_cast<int>(t.view().shape[0]) : 0;
}

[[noreturn]] void refuse_type(py::handle given, const char* argument, const char* type) {
  throw SpecError(fmt::format("{} is a {}; it must be a lazyrope.{}", argument,
                              Py_TYPE(given.ptr())->tp_name, type));
}

// Reads an attribute of an argument that must be an object of one of lazyrope's classes. The name
// is interned once, so that a look-up compares pointers.
class Field {
 public:
  explicit Field(const char* name) : name_(PyUnicode_InternFromString(name)) {}

  py::object of(py::handle owner, const char* argument, const char* type) const {
    PyObject* value = PyObject_GetAttr(owner.ptr(), name_);
    if (value != nullptr) return py::reinterpret_steal<py::object>(value);
    PyErr_Clear();
    refuse_type(owner, argument, type);
  }

 private:
  PyObject* name_;  // lives as long as the interpreter
};

int int_of(const py::object& value, const char* name) {
  try {
    return py::cast<int>(value);
  } catch (const py::cast_error&) {
    throw SpecError(fmt::format("capacity.{} = {}; it must be an int of 32 bits", name,
                                py::cast<std::string>(py::repr(value))));
  }
}

std::optional<int> optional_capacity_field(py::handle capacity, const char* name,
                                           const char* type) {
  if (!py::hasattr(capacity, name)) refuse_type(capacity, "capacity", type);
  const py::object value = capacity.attr(name);
  return value.is_none() ? std::nullopt : std::optional(int_of(value, name));
}

int capacity_field(py::handle capacity, const char* name, const char* type) {
  if (!py::hasattr(capacity, name)) refuse_type(capacity, "capacity", type);
  return int_of(capacity.attr(name), name);
}

py::object step_class(const char* name) {
  return py::module_::import("lazyrope._arguments").attr(name);
}

template <class AnyStep, class Tensors>
void update_step(AnyStep& step, const Tensors& tensors, bool check, Stream stream) {
  std::optional<py::gil_scoped_release> unlocked;
  if (check) unlocked.emplace();  // the check waits for the stream
  step.update(tensors, check, stream);
}

std::string text_of(const py::object& value) { return py::cast<std::string>(py::repr(value)); }

py::object append_capacity_object(const AppendStep& step) {
  return step_class("AppendCapacity")(step.capacity(), step.max_spans());
}

template <class AnyStep>
const char* layout_name(const AnyStep& step) {
  return step.format().layout == KvLayout::kNhd ? "NHD" : "HND";
}

}  // namespace

Stream stream_of(const std::optional<std::uintptr_t>& given, const DlpackTensor& tensor) {
  return given ? reinterpret_cast<Stream>(*given) : tensor.current_stream();
}

PoolFormat format_of(int page_size, const std::string& layout) {
  if (layout != "NHD" && layout != "HND")
    throw SpecError(
        fmt::format("layout = \"{}\"; allowed are: NHD ([pages, page_size, kv_heads, head_dim]), "
                    "HND ([pages, kv_heads, page_size, head_dim])",
                    layout));
  return {page_size, layout == "NHD" ? KvLayout::kNhd : KvLayout::kHnd};
}

SegmentArguments segments_of(py::handle segments) {
  static const Field indptr("indptr"), base("base"), start("start"), length("length"),
      first_page("first_page"), lead("lead"), mask_base("mask_base"), mass_tokens("mass_tokens"),
      memory("memory");
  const auto read = [&](const Field& field) { return field.of(segments, "segments", "Segments"); };
  return {read(indptr), read(base),      read(start),       read(length), read(first_page),
          read(lead),   read(mask_base), read(mass_tokens), read(memory)};
}

AppendArguments append_arguments_of(py::handle spans, py::object pages) {
  static const Field indptr("indptr"), start("start"), first_page("first_page"), lead("lead");
  const auto read = [&](const Field& field) { return field.of(spans, "spans", "TokenSpans"); };
  return {read(indptr), read(start), read(first_page), read(lead), std::move(pages)};
}

SlotArguments slots_of(py::handle slots) {
  static const Field slot_mapping("slot_mapping"), index("index");
  if (py::hasattr(slots, "first_page"))
    throw SpecError("a TokenSpans is given without pages; give pages too, or a TokenSlots");
  const auto read = [&](const Field& field) { return field.of(slots, "slots", "TokenSlots"); };
  return {read(slot_mapping), read(index)};
}

StepCapacity step_capacity_from(py::handle capacity) {
  constexpr const char* kType = "StepCapacity";
  const StepCapacity result = {
      .requests = capacity_field(capacity, "requests", kType),
      .segments = capacity_field(capacity, "segments", kType),
      .query_tokens = capacity_field(capacity, "query_tokens", kType),
      .tokens_per_request =
          optional_capacity_field(capacity, "tokens_per_request", kType).value_or(0),
      .rotated_tokens = capacity_field(capacity, "rotated_tokens", kType),
      .mass_pages = capacity_field(capacity, "mass_pages", kType)};
  return result;
}

StepCapacity capacity_of(const py::object& capacity, const StepArguments& a) {
  if (!capacity.is_none()) return step_capacity_from(capacity);
  return {.requests = std::max(0, rows_of("q_indptr", a.q_indptr) - 1),
          .segments = rows_of("segments.base", a.segments.base),
          .query_tokens = rows_of("q_position", a.q_position)};
}

AppendCapacity append_capacity_from(py::handle capacity) {
  return {.tokens = capacity_field(capacity, "tokens", "AppendCapacity"),
          .spans = optional_capacity_field(capacity, "spans", "AppendCapacity")};
}

py::object capacity_object(const StepCapacity& c) {
  return step_class("StepCapacity")(c.requests, c.segments, c.query_tokens, c.tokens_per_request,
                                    c.rotated_tokens, c.mass_pages);
}

void PyStep::update(StepArguments given, bool check, const std::optional<std::uintptr_t>& stream) {
  const SegmentArguments& s = given.segments;
  const DlpackTensor q_indptr("q_indptr", given.q_indptr);
  const DlpackTensor q_position("q_position", given.q_position);
  const DlpackTensor indptr("segments.indptr", s.indptr);
  const DlpackTensor base("segments.base", s.base);
  const DlpackTensor start("segments.start", s.start);
  const DlpackTensor length("segments.length", s.length);
  const DlpackTensor first_page("segments.first_page", s.first_page);
  const OptionalTensor lead("segments.lead", s.lead);
  const OptionalTensor mask_base("segments.mask_base", s.mask_base);
  const OptionalTensor mass_tokens("segments.mass_tokens", s.mass_tokens);
  const OptionalTensor memory("segments.memory", s.memory);
  const DlpackTensor pages("pages", given.pages);
  const StepTensors tensors = {
      .q_indptr = q_indptr.view(),
      .q_position = q_position.view(),
      .segments = {indptr.view(), base.view(), start.view(), length.view(), first_page.view(),
                   lead.view(), mask_base.view(), memory.view()},
      .pages = pages.view(),
      .mass_tokens = mass_tokens.view()};
  update_step(*step, tensors, check, stream_of(stream, q_indptr));
  arguments = std::move(given);
  batch = {};
}

void PyStep::update(PyBatch& given, bool check, const std::optional<std::uintptr_t>& stream) {
  const Stream used_stream = given.stream(stream);
  update_step(*step, given.upload(step->format().page_size, used_stream), check, used_stream);
  batch = py::cast(given, py::return_value_policy::reference);  // the existing Python object
  arguments = {};
}

void PyAppendStep::update(AppendArguments given, bool check,
                          const std::optional<std::uintptr_t>& stream) {
  const DlpackTensor indptr("spans.indptr", given.indptr);
  const DlpackTensor start("spans.start", given.start);
  const DlpackTensor first_page("spans.first_page", given.first_page);
  const OptionalTensor lead("spans.lead", given.lead);
  const DlpackTensor pages("pages", given.pages);
  const AppendTensors tensors = {
      .spans = {indptr.view(), start.view(), first_page.view(), lead.view()},
      .pages = pages.view()};
  update_step(*step, tensors, check, stream_of(stream, indptr));
  arguments = std::move(given);
  slots = {};
}

void PyAppendStep::update(SlotArguments given, bool check,
                          const std::optional<std::uintptr_t>& stream) {
  const DlpackTensor slot_mapping("slots.slot_mapping", given.slot_mapping);
  const DlpackTensor index("slots.index", given.index);
  const TokenSlots tensors = {slot_mapping.view(), index.view()};
  update_step(*step, tensors, check, stream_of(stream, slot_mapping));
  slots = std::move(given);
  arguments = {};
}

namespace {

void bind_step(py::module_& module) {
  py::class_<PyStep> step(module, "Step");
  step.def(
          "update",
          [](PyStep& self, py::object q_indptr, py::object q_position, py::handle segments,
             py::object pages, bool check, const std::optional<std::uintptr_t>& stream) {
            self.update({std::move(q_indptr), std::move(q_position), segments_of(segments),
                         std::move(pages)},
                        check, stream);
          },
          py::arg("q_indptr"), py::arg("q_position"), py::arg("segments"), py::arg("pages"),
          py::kw_only(), py::arg("check") = false, py::arg("stream") = py::none(),
          py::call_guard<LogDelivery>())
      .def(
          "update",
          [](PyStep& self, PyBatch& batch, bool check,
             const std::optional<std::uintptr_t>& stream) { self.update(batch, check, stream); },
          py::arg("batch"), py::kw_only(), py::arg("check") = false, py::arg("stream") = py::none(),
          py::call_guard<LogDelivery>())
      .def_property_readonly("capacity",
                             [](const PyStep& s) { return capacity_object(s.step->capacity()); })
      .def_property_readonly("page_size",
                             [](const PyStep& s) { return s.step->format().page_size; })
      .def_property_readonly("layout", [](const PyStep& s) { return layout_name(*s.step); })
      .def_property_readonly("num_tokens", [](const PyStep& s) { return s.step->num_tokens(); })
      .def_property_readonly("nbytes", [](const PyStep& s) { return s.step->bytes(); })
      .def("__repr__", [](const PyStep& s) {
        return fmt::format("Step(num_tokens={}, capacity={}, page_size={}, layout='{}', nbytes={})",
                           s.step->num_tokens(), text_of(capacity_object(s.step->capacity())),
                           s.step->format().page_size, layout_name(*s.step), s.step->bytes());
      });
  define_handle(step);
}

void bind_append_step(py::module_& module) {
  py::class_<PyAppendStep> append_step(module, "AppendStep");
  append_step
      .def(
          "update",
          [](PyAppendStep& self, py::handle spans, py::object pages, bool check,
             const std::optional<std::uintptr_t>& stream) {
            self.update(append_arguments_of(spans, std::move(pages)), check, stream);
          },
          py::arg("spans"), py::arg("pages"), py::kw_only(), py::arg("check") = false,
          py::arg("stream") = py::none(), py::call_guard<LogDelivery>())
      .def(
          "update",
          [](PyAppendStep& self, py::handle slots, bool check,
             const std::optional<std::uintptr_t>& stream) {
            self.update(slots_of(slots), check, stream);
          },
          py::arg("slots"), py::kw_only(), py::arg("check") = false, py::arg("stream") = py::none(),
          py::call_guard<LogDelivery>())
      .def_property_readonly("capacity",
                             [](const PyAppendStep& s) { return append_capacity_object(*s.step); })
      .def_property_readonly("page_size",
                             [](const PyAppendStep& s) { return s.step->format().page_size; })
      .def_property_readonly("layout", [](const PyAppendStep& s) { return layout_name(*s.step); })
      .def("__repr__", [](const PyAppendStep& s) {
        return fmt::format("AppendStep(capacity={}, page_size={}, layout='{}')",
                           text_of(append_capacity_object(*s.step)), s.step->format().page_size,
                           layout_name(*s.step));
      });
  define_handle(append_step);
}

}  // namespace

void bind_steps(py::module_& module) {
  bind_step(module);
  bind_append_step(module);
}

}  // namespace lazyrope
