#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <string>
#include <string_view>

#include "codegen/error.h"
#include "python/bindings.h"
#include "python/dlpack_tensor.h"
#include "python/steps.h"

namespace lazyrope {
namespace {

namespace py = pybind11;

// Reads an attribute by its interned name. The result is null, with no Python error set, if the
// object has no such attribute.
class Attribute {
 public:
  explicit Attribute(const char* name) : name_(PyUnicode_InternFromString(name)) {}

  py::object of(py::handle owner) const {
    PyObject* value = PyObject_GetAttr(owner.ptr(), name_);
    if (value == nullptr) PyErr_Clear();
    return py::reinterpret_steal<py::object>(value);
  }

 private:
  PyObject* name_;  // lives as long as the interpreter
};

std::string repr_of(py::handle value) { return py::cast<std::string>(py::repr(value)); }

const char* type_name(py::handle value) { return Py_TYPE(value.ptr())->tp_name; }

// Returns true if the object is an int or converts to one without loss. An object with __len__ is
// no int: a tensor has __index__ too, whatever its length.
bool is_int(py::handle value) {
  return PyLong_Check(value.ptr()) ||
         (PyIndex_Check(value.ptr()) && !py::hasattr(value, "__len__"));
}

// Returns the value, or calls refuse(), which throws, if the object is no int of 32 bits.
template <class Refuse>
int to_int(py::handle value, const Refuse& refuse) {
  int overflows = 0;
  long number =
      PyLong_CheckExact(value.ptr()) ? PyLong_AsLongAndOverflow(value.ptr(), &overflows) : -1;
  if (!PyLong_CheckExact(value.ptr())) {
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!index) {
      PyErr_Clear();
      refuse();
    }
    number = PyLong_AsLongAndOverflow(index.ptr(), &overflows);
  }
  if (overflows != 0 || number < std::numeric_limits<int>::min() ||
      number > std::numeric_limits<int>::max())
    refuse();
  return static_cast<int>(number);
}

// Returns the items of any iterable. Throws SpecError if the object is not iterable: it names the
// object as `what` and says that it must be `meaning`.
py::object items_of(py::handle iterable, const std::string& what, const char* meaning) {
  auto items = py::reinterpret_steal<py::object>(PySequence_Fast(iterable.ptr(), ""));
  if (!items) {
    PyErr_Clear();
    throw SpecError(fmt::format("{} is a {}; it must be {}", what, type_name(iterable), meaning));
  }
  return items;
}

template <class Visit>
void for_each_item(const py::object& items, const Visit& visit) {
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.ptr()); ++i) {
    const auto item = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(items.ptr(), i));
    visit(static_cast<std::size_t>(i), item);
  }
}

// Reads the host lists of a batch.
class RequestReader {
 public:
  std::vector<Request> read(py::handle requests) {
    std::vector<Request> result;
    for_each_item(items_of(requests, "requests", "a list of lazyrope.Request"),
                  [&](std::size_t r, const py::object& request) {
                    request_ = r;
                    result.push_back(read_request(request));
                  });
    return result;
  }

 private:
  Request read_request(const py::object& request) const {
    static const Attribute positions("positions"), segments("segments"), mass_tokens("mass_tokens");
    const py::object given = positions.of(request);
    const py::object list = given ? segments.of(request) : py::object();
    if (!list)
      throw SpecError(fmt::format("request {} is a {}; it must be a lazyrope.Request", request_,
                                  type_name(request)));
    Request result = {read_positions(given), {}, read_mass_tokens(mass_tokens.of(request))};
    for_each_item(
        items_of(list, fmt::format("request {}: segments", request_), "a list of lazyrope.Segment"),
        [&](std::size_t s, const py::object& segment) {
          result.segments.push_back(read_segment(s, segment));
        });
    return result;
  }

  std::optional<int> read_mass_tokens(const py::object& given) const {
    if (!given || given.is_none()) return {};
    return to_int(given, [&] {
      throw SpecError(fmt::format("request {}: mass_tokens = {}; it must be an int of 32 bits",
                                  request_, repr_of(given)));
    });
  }

  std::vector<int> read_positions(const py::object& given) const {
    const auto to_position = [&](py::handle value) {
      return to_int(value, [&] {
        throw SpecError(fmt::format("request {}: position {}; it must be an int of 32 bits",
                                    request_, repr_of(value)));
      });
    };
    if (is_int(given)) return {to_position(given)};
    if (PyRange_Check(given.ptr())) return read_range(given, to_position);
    std::vector<int> positions;
    for_each_item(items_of(given, fmt::format("request {}: positions", request_),
                           "a list of ints, a range, or an int"),
                  [&](std::size_t, py::handle value) { positions.push_back(to_position(value)); });
    return positions;
  }

  template <class ToPosition>
  static std::vector<int> read_range(const py::object& range, const ToPosition& to_position) {
    const std::size_t size = py::len(range);
    if (size == 0) return {};
    const auto first = to_position(range[py::int_(0)]);
    to_position(range[py::int_(-1)]);  // a check: all other positions are between the two
    const auto step = size == 1 ? 0 : py::cast<std::int64_t>(range.attr("step"));
    std::vector<int> positions(size);
    for (std::size_t i = 0; i < size; ++i)
      positions[i] = static_cast<int>(first + step * static_cast<std::int64_t>(i));
    return positions;
  }

  Segment read_segment(std::size_t s, const py::object& segment) const {
    static const Attribute document("document"), base("base"), start("start"), length("length"),
        mask_base("mask_base"), memory("memory");
    const py::object segment_document = document.of(segment);
    const py::object segment_base = segment_document ? base.of(segment) : py::object();
    const py::object segment_start = segment_base ? start.of(segment) : py::object();
    const py::object segment_length = segment_start ? length.of(segment) : py::object();
    const py::object segment_mask_base = segment_length ? mask_base.of(segment) : py::object();
    const py::object segment_memory = segment_mask_base ? memory.of(segment) : py::object();
    if (!segment_memory)
      throw SpecError(fmt::format("request {}, segment {} is a {}; it must be a lazyrope.Segment",
                                  request_, s, type_name(segment)));
    const auto field = [&](const char* name, py::handle value) { return read_int(s, name, value); };
    Segment result = {read_document(s, segment_document),
                      field("base", segment_base),
                      field("start", segment_start),
                      {},
                      {}};
    if (!segment_length.is_none()) result.length = field("length", segment_length);
    if (!segment_mask_base.is_none()) result.mask_base = field("mask_base", segment_mask_base);
    result.memory = field("memory", segment_memory);
    return result;
  }

  Document read_document(std::size_t s, const py::object& document) const {
    static const Attribute first_page("first_page"), num_tokens("num_tokens"), lead("lead");
    const py::object page = first_page.of(document);
    const py::object tokens = page ? num_tokens.of(document) : py::object();
    const py::object slot = tokens ? lead.of(document) : py::object();
    if (!slot)
      throw SpecError(fmt::format(
          "request {}, segment {}: document is a {}; it must be a lazyrope.Document, or "
          "have first_page, num_tokens and lead",
          request_, s, type_name(document)));
    return {read_int(s, "document.first_page", page), read_int(s, "document.num_tokens", tokens),
            read_int(s, "document.lead", slot)};
  }

  int read_int(std::size_t s, const char* name, py::handle value) const {
    return to_int(value, [&] {
      throw SpecError(fmt::format("request {}, segment {}: {} = {}; it must be an int of 32 bits",
                                  request_, s, name, repr_of(value)));
    });
  }

  std::size_t request_ = 0;
};

std::unique_ptr<PyBatch> make_batch(py::object pages, const StepCapacity& capacity) {
  const DlpackTensor view("pages", pages);
  auto batch = std::make_unique<PyBatch>(Batch(view.view(), capacity));
  batch->pages = std::move(pages);
  return batch;
}

std::unique_ptr<PyBatch> batch_of(py::handle requests, py::object pages,
                                  const py::object& capacity) {
  const std::vector<Request> given = RequestReader().read(requests);
  auto batch = make_batch(std::move(pages), capacity.is_none() ? Batch::capacity_for(given)
                                                               : step_capacity_from(capacity));
  batch->batch->fill(given);
  return batch;
}

// Returns the arrays of the requests, by name, for lazyrope/eager.py.
py::dict values_of(const PyBatch& batch) {
  const Batch::Values& v = batch.batch->values();
  py::dict values(py::arg("q_indptr") = v.q_indptr, py::arg("q_position") = v.q_position,
                  py::arg("segment_indptr") = v.segment_indptr, py::arg("base") = v.base,
                  py::arg("start") = v.start, py::arg("length") = v.length,
                  py::arg("first_page") = v.first_page, py::arg("lead") = v.slot);
  if (!v.mask_base.empty()) values["mask_base"] = v.mask_base;
  if (!v.memory.empty()) values["memory"] = v.memory;
  if (!v.mass_tokens.empty()) values["mass_tokens"] = v.mass_tokens;
  return values;
}

}  // namespace

StepTensors PyBatch::upload(int page_size, Stream stream) const {
  {
    const py::gil_scoped_release unlocked;
    batch->wait();
  }
  return batch->upload(page_size, stream);
}

Stream PyBatch::stream(const std::optional<std::uintptr_t>& given) const {
  return given ? reinterpret_cast<Stream>(*given) : DlpackTensor("pages", pages).current_stream();
}

void bind_batch(py::module_& module) {
  py::class_<PyBatch>(module, "Batch")
      .def(py::init([](py::object pages, py::handle capacity) {
             return make_batch(std::move(pages), step_capacity_from(capacity));
           }),
           py::arg("pages"), py::kw_only(), py::arg("capacity"))
      .def(
          "fill",
          [](PyBatch& self, py::handle requests) {
            self.batch->fill(RequestReader().read(requests));
          },
          py::arg("requests"))
      .def_property_readonly(
          "capacity", [](const PyBatch& self) { return capacity_object(self.batch->capacity()); })
      .def_property_readonly("pages", [](const PyBatch& self) { return self.pages; })
      .def_property_readonly("num_requests",
                             [](const PyBatch& self) { return self.batch->num_requests(); })
      .def_property_readonly("num_segments",
                             [](const PyBatch& self) { return self.batch->num_segments(); })
      .def_property_readonly("num_tokens",
                             [](const PyBatch& self) { return self.batch->num_tokens(); })
      .def_property_readonly("mass_pages",
                             [](const PyBatch& self) { return self.batch->token_runs(); })
      .def_property_readonly("page_indptr",
                             [](const PyBatch& self) { return self.batch->run_indptr(); })
      .def_property_readonly("_values", &values_of)
      .def("__repr__", [](const PyBatch& self) {
        const Batch& b = *self.batch;
        return fmt::format("Batch(num_requests={}, num_segments={}, num_tokens={}, capacity={})",
                           b.num_requests(), b.num_segments(), b.num_tokens(),
                           repr_of(capacity_object(b.capacity())));
      });
  module.def("batch", &batch_of, py::arg("requests"), py::arg("pages"),
             py::arg("capacity") = py::none());
}

}  // namespace lazyrope
