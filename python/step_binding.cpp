#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "codegen/error.h"
#include "python/bindings.h"
#include "python/dlpack_tensor.h"
#include "python/steps.h"

namespace lazyrope {
namespace {

namespace py = pybind11;

int rows_of(const char* name, const py::object& tensor) {
  const DlpackTensor t(name, tensor);
  return t.view().rank > 0 ? static_cast<int>(t.view().shape[0]) : 0;
}

int capacity_field(const py::dict& capacity, const char* name, int otherwise) {
  if (!capacity.contains(name)) return otherwise;
  try {
    return py::cast<int>(capacity[name]);
  } catch (const py::cast_error&) {
    throw SpecError(fmt::format("capacity[\"{}\"] = {}; it must be an int of 32 bits", name,
                                py::cast<std::string>(py::repr(capacity[name]))));
  }
}

void check_capacity_fields(const py::dict& capacity) {
  for (const auto& [key, value] : capacity) {
    const auto name = py::cast<std::string>(py::str(key));
    if (name != "requests" && name != "segments" && name != "query_tokens" &&
        name != "tokens_per_request")
      throw SpecError(
          fmt::format("capacity has \"{}\"; allowed are: requests, segments, query_tokens, "
                      "tokens_per_request",
                      name));
  }
}

py::dict checked_capacity(const py::object& capacity) {
  if (!py::isinstance(capacity, py::module_::import("collections.abc").attr("Mapping")))
    throw SpecError(
        fmt::format("capacity = {}; it must be a dict", py::cast<std::string>(py::repr(capacity))));
  py::dict given(capacity);
  check_capacity_fields(given);
  return given;
}

StepCapacity capacity_of_fields(const py::dict& given, const StepCapacity& otherwise) {
  return {capacity_field(given, "requests", otherwise.requests),
          capacity_field(given, "segments", otherwise.segments),
          capacity_field(given, "query_tokens", otherwise.query_tokens),
          capacity_field(given, "tokens_per_request", otherwise.tokens_per_request)};
}

py::dict capacity_dict(const StepCapacity& c) {
  py::dict result;
  result["requests"] = c.requests;
  result["segments"] = c.segments;
  result["query_tokens"] = c.query_tokens;
  result["tokens_per_request"] = c.tokens_per_request;
  return result;
}

template <class AnyStep, class Tensors>
void update_step(AnyStep& step, const Tensors& tensors, bool check, Stream stream) {
  std::optional<py::gil_scoped_release> unlocked;
  if (check) unlocked.emplace();  // it waits for the stream
  step.update(tensors, check, stream);
}

void update(PyStep& self, StepArguments arguments, bool check,
            const std::optional<std::uintptr_t>& stream) {
  self.update(std::move(arguments), check, stream);
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

StepCapacity whole_capacity(const py::object& capacity) {
  const py::dict given = checked_capacity(capacity);
  for (const char* name : {"requests", "segments", "query_tokens"})
    if (!given.contains(name))
      throw SpecError(
          fmt::format("capacity has no \"{}\": here it must have requests, segments and "
                      "query_tokens",
                      name));
  return capacity_of_fields(given, {});
}

StepCapacity capacity_of(const py::object& capacity, const StepArguments& a) {
  const py::dict given = capacity.is_none() ? py::dict() : checked_capacity(capacity);
  return capacity_of_fields(given, {.requests = std::max(0, rows_of("q_indptr", a.q_indptr) - 1),
                                    .segments = rows_of("base", a.base),
                                    .query_tokens = rows_of("q_position", a.q_position)});
}

void PyStep::update(StepArguments given, bool check, const std::optional<std::uintptr_t>& stream) {
  const DlpackTensor q_indptr("q_indptr", given.q_indptr);
  const DlpackTensor q_position("q_position", given.q_position);
  const DlpackTensor segment_indptr("segment_indptr", given.segment_indptr);
  const DlpackTensor base("base", given.base);
  const DlpackTensor start("start", given.start);
  const DlpackTensor length("length", given.length);
  const DlpackTensor first_page("first_page", given.first_page);
  const DlpackTensor pages("pages", given.pages);
  std::optional<DlpackTensor> lead;
  if (!given.lead.is_none()) lead.emplace("lead", given.lead);
  StepTensors tensors = {q_indptr.view(),   q_position.view(), segment_indptr.view(),
                         base.view(),       start.view(),      length.view(),
                         first_page.view(), pages.view(),      std::nullopt};
  if (lead) tensors.lead = lead->view();
  update_step(*step, tensors, check, stream_of(stream, q_indptr));
  arguments = std::move(given);
}

void PyAppendStep::update(AppendArguments given, bool check,
                          const std::optional<std::uintptr_t>& stream) {
  const DlpackTensor indptr("indptr", given.indptr);
  const DlpackTensor first("first", given.first);
  const DlpackTensor first_page("first_page", given.first_page);
  const DlpackTensor lead("lead", given.lead);
  const DlpackTensor pages("pages", given.pages);
  const AppendTensors tensors = {indptr.view(), first.view(), first_page.view(), lead.view(),
                                 pages.view()};
  update_step(*step, tensors, check, stream_of(stream, indptr));
  arguments = std::move(given);
}

void bind_steps(py::module_& module) {
  py::class_<PyStep> step(module, "Step");
  define_with_step_arguments(step, "update", &update, py::kw_only(), py::arg("check") = false,
                             py::arg("stream") = py::none());
  step.def_property_readonly("capacity",
                             [](const PyStep& s) { return capacity_dict(s.step->capacity()); })
      .def_property_readonly("page_size",
                             [](const PyStep& s) { return s.step->format().page_size; })
      .def_property_readonly(
          "layout",
          [](const PyStep& s) { return s.step->format().layout == KvLayout::kNhd ? "NHD" : "HND"; })
      .def_property_readonly("num_tokens", [](const PyStep& s) { return s.step->num_tokens(); })
      .def_property_readonly("nbytes", [](const PyStep& s) { return s.step->bytes(); });
  define_handle(step);

  py::class_<PyAppendStep> append_step(module, "AppendStep");
  append_step
      .def(
          "update",
          [](PyAppendStep& self, py::object indptr, py::object first, py::object first_page,
             py::object lead, py::object pages, bool check, std::optional<std::uintptr_t> stream) {
            self.update({std::move(indptr), std::move(first), std::move(first_page),
                         std::move(lead), std::move(pages)},
                        check, stream);
          },
          py::arg("indptr"), py::arg("first"), py::arg("first_page"), py::arg("lead"),
          py::arg("pages"), py::kw_only(), py::arg("check") = false, py::arg("stream") = py::none())
      .def_property_readonly("capacity", [](const PyAppendStep& s) { return s.step->capacity(); })
      .def_property_readonly("page_size",
                             [](const PyAppendStep& s) { return s.step->format().page_size; });
  define_handle(append_step);
}

}  // namespace lazyrope
