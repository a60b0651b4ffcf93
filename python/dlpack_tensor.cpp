#include "python/dlpack_tensor.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include <string>
#include <unordered_map>

#include "codegen/error.h"

namespace lazyrope {
namespace {

namespace py = pybind11;

const DLPackExchangeAPI* lookup_exchange_api(PyTypeObject* type) {
  const py::handle handle(reinterpret_cast<PyObject*>(type));
  if (!py::hasattr(handle, "__dlpack_c_exchange_api__")) return nullptr;
  const py::object capsule = handle.attr("__dlpack_c_exchange_api__");
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  const auto* api = static_cast<const DLPackExchangeAPI*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  return api->header.version.major == DLPACK_MAJOR_VERSION ? api : nullptr;
}

// Looks up each type once. The interpreter's lock guards the table.
const TensorType& tensor_type(PyTypeObject* type) {
  static std::unordered_map<PyTypeObject*, TensorType> known;
  const auto it = known.find(type);
  if (it != known.end()) return it->second;
  const py::handle handle(reinterpret_cast<PyObject*>(type));
  const TensorType found = {
      .api = lookup_exchange_api(type),
      .is_torch = py::hasattr(handle, "is_neg") && py::hasattr(handle, "requires_grad")};
  Py_INCREF(type);  // no other type may get the address that is the table's key
  return known.emplace(type, found).first->second;
}

// The tensor in a capsule of __dlpack__().
struct CapsuleContent {
  const DLTensor& tensor;
  std::uint64_t flags;
};

// Returns nothing, and sets a Python error, if the object is no such capsule.
std::optional<CapsuleContent> content_of(const char* name, const py::object& capsule) {
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const void* managed = PyCapsule_GetPointer(capsule.ptr(), "dltensor");
    if (managed == nullptr) return std::nullopt;
    return CapsuleContent{static_cast<const DLManagedTensor*>(managed)->dl_tensor, 0};
  }
  const auto* managed = static_cast<const DLManagedTensorVersioned*>(
      PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
  if (managed->version.major != DLPACK_MAJOR_VERSION)
    throw SpecError(fmt::format("{} is a tensor of DLPack {}.{}; lazyrope reads versions {}.x",
                                name, managed->version.major, managed->version.minor,
                                DLPACK_MAJOR_VERSION));
  return CapsuleContent{managed->dl_tensor, managed->flags};
}

ElementType element_type(DLDataType type) {
  if (type.lanes != 1) return ElementType::kOther;
  if (type.code == kDLBfloat && type.bits == 16) return ElementType::kBf16;
  if (type.code == kDLFloat && type.bits == 16) return ElementType::kFp16;
  if (type.code == kDLFloat8_e4m3fn) return ElementType::kFp8E4m3;
  if (type.code == kDLFloat8_e5m2) return ElementType::kFp8E5m2;
  if (type.code == kDLUInt && type.bits == 8) return ElementType::kUint8;
  if (type.code == kDLFloat && type.bits == 32) return ElementType::kFp32;
  if (type.code == kDLInt && type.bits == 32) return ElementType::kInt32;
  if (type.code == kDLInt && type.bits == 64) return ElementType::kInt64;
  if (type.code == kDLFloat && type.bits == 64) return ElementType::kFp64;
  return ElementType::kOther;
}

DLDataType dlpack_type(ElementType type) {
  switch (type) {
    case ElementType::kBf16:
      return {kDLBfloat, 16, 1};
    case ElementType::kFp16:
      return {kDLFloat, 16, 1};
    case ElementType::kInt32:
      return {kDLInt, 32, 1};
    default:
      return {kDLFloat, 32, 1};
  }
}

DeviceType device_type(DLDeviceType type) {
  switch (type) {
    case kDLCPU:
      return DeviceType::kCpu;
    case kDLCUDA:
    case kDLCUDAManaged:
      return DeviceType::kGpu;
    default:
      return DeviceType::kOther;
  }
}

TensorView view_of(const char* name, const DLTensor& t) {
  if (t.ndim > TensorView::kMaxRank)
    throw SpecError(fmt::format("{} has {} dimensions; at most {} are possible", name, t.ndim,
                                TensorView::kMaxRank));
  TensorView view;
  view.data = static_cast<char*>(t.data) + t.byte_offset;
  view.device_type = device_type(t.device.device_type);
  view.device = t.device.device_id;
  view.type = element_type(t.dtype);
  view.rank = t.ndim;
  std::int64_t stride = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    view.shape[at] = t.shape[i];
    view.strides[at] = t.strides != nullptr ? t.strides[i] : stride;
    stride *= t.shape[i];
  }
  if (t.data == nullptr && view.elements() > 0)
    throw SpecError(fmt::format("{} has no memory: a fake or meta tensor cannot be used", name));
  return view;
}

// Returns the error's first line: PyTorch adds a C++ stack trace.
std::string first_line(const py::error_already_set& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

[[noreturn]] void refuse(const char* name, py::handle object, const py::error_already_set& error) {
  throw SpecError(fmt::format("{} ({}) cannot be used as a tensor: {}", name,
                              Py_TYPE(object.ptr())->tp_name, first_line(error)));
}

// Refuses the tensor with the Python error that its framework has set.
[[noreturn]] void refuse(const char* name, py::handle object) {
  refuse(name, object, py::error_already_set());
}

// Throws SpecError if a write to the tensor would be illegal or lost.
void check_writable(const char* name, py::handle object, std::uint64_t flags) {
  const char* type = Py_TYPE(object.ptr())->tp_name;
  if ((flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0)
    throw SpecError(fmt::format(
        "{} ({}) is read-only, and the call writes to it; give a writable tensor", name, type));
  if ((flags & DLPACK_FLAG_BITMASK_IS_COPIED) != 0)
    throw SpecError(fmt::format(
        "{} ({}) gives a copy of its memory by DLPack, so what the call writes would be "
        "lost; give a tensor that shares its memory",
        name, type));
}

// Returns true if the new reference `answer`, which the object gave, is True. It is null if the
// object raised an error.
bool is_true(const char* name, py::handle object, PyObject* answer) {
  const auto value = py::reinterpret_steal<py::object>(answer);
  if (!value) refuse(name, object);
  return value.ptr() == Py_True;
}

std::string module_of(py::handle object) {
  return py::cast<std::string>(py::type::of(object).attr("__module__"));
}

// Returns the array API's namespace, or the package of the type: CuPy 14 has no such method.
py::object array_namespace(py::handle object) {
  if (py::hasattr(object, "__array_namespace__")) return object.attr("__array_namespace__")();
  const std::string module = module_of(object);
  return py::module_::import(module.substr(0, module.find('.')).c_str());
}

bool on_host(py::handle object) {
  const py::tuple device = object.attr("__dlpack_device__")();
  return py::cast<int>(device[0]) == kDLCPU;
}

// Makes a device CuPy's current one for the lifetime of this object.
class CurrentCupyDevice {
 public:
  explicit CurrentCupyDevice(const py::object& device)
      : before_(py::module_::import("cupy").attr("cuda").attr("Device")()) {
    device.attr("use")();
  }
  CurrentCupyDevice(const CurrentCupyDevice&) = delete;
  CurrentCupyDevice& operator=(const CurrentCupyDevice&) = delete;
  ~CurrentCupyDevice() {
    const py::error_scope saved;  // an error of the allocation may be set
    PyObject* none = PyObject_CallMethod(before_.ptr(), "use", nullptr);
    if (none == nullptr) PyErr_Clear();
    Py_XDECREF(none);
  }

 private:
  py::object before_;
};

struct AllocationError {
  std::string text;
};

void set_allocation_error(void* context, const char* kind, const char* message) {
  static_cast<AllocationError*>(context)->text = fmt::format("{}: {}", kind, message);
}

}  // namespace

DlpackTensor::DlpackTensor(const char* name, py::handle object, Access access)
    : name_(name), object_(object), type_(tensor_type(Py_TYPE(object.ptr()))) {
  if (type_.api == nullptr) {
    view_by_capsule(access);
  } else {
    DLTensor tensor;
    if (type_.api->dltensor_from_py_object_no_sync(object.ptr(), &tensor) != 0)
      refuse(name, object);
    view_ = view_of(name, tensor);
  }
  if (type_.is_torch) refuse_torch_state();
}

DlpackTensor::~DlpackTensor() = default;

void DlpackTensor::view_by_capsule(Access access) {
  if (!py::hasattr(object_, "__dlpack__"))
    throw SpecError(
        fmt::format("{} is a {}; it must be a tensor (torch, CuPy, or another that has "
                    "__dlpack__)",
                    name_, Py_TYPE(object_.ptr())->tp_name));
  try {
    capsule_ = capsule();
  } catch (const py::error_already_set& error) {
    refuse(name_, object_, error);
  }
  const auto content = content_of(name_, capsule_);
  if (!content) refuse(name_, object_);
  if (access == Access::kWrite) check_writable(name_, object_, content->flags);
  view_ = view_of(name_, content->tensor);
}

// Only a versioned capsule can say that the tensor is read-only. Frameworks older than DLPack 1.0
// do not take the argument max_version.
py::object DlpackTensor::capsule() const {
  py::dict arguments;
  if (!on_host(object_)) arguments["stream"] = capsule_stream();
  const py::object dlpack = object_.attr("__dlpack__");
  try {
    return dlpack(**arguments, py::arg("max_version") =
                                   py::make_tuple(DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION));
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return dlpack(**arguments);
}

// PyTorch's exchange API gives the memory of tensors whose values are not those in memory, and of
// tensors that want a gradient.
void DlpackTensor::refuse_torch_state() const {
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  if (is_true(name_, object_, PyObject_CallMethodNoArgs(object_.ptr(), is_neg)))
    throw SpecError(
        fmt::format("{} has PyTorch's negative bit: its memory holds the values with the other "
                    "sign; give what resolve_neg() returns",
                    name_));
  if (!is_true(name_, object_, PyObject_GetAttr(object_.ptr(), requires_grad))) return;
  if (py::module_::import("torch").attr("is_grad_enabled")().ptr() == Py_True)
    throw SpecError(
        fmt::format("{} requires a gradient, and lazyrope has no backward: call it under "
                    "torch.no_grad() or torch.inference_mode(), or give what detach() returns",
                    name_));
}

bool DlpackTensor::is_cupy() const { return module_of(object_).starts_with("cupy"); }

// Returns the argument `stream` of __dlpack__, on which the data must be ready. -1: no stream
// waits, for kernels are launched on CuPy's current stream. 1: the default stream, on which kernels
// are launched for tensors of other frameworks.
int DlpackTensor::capsule_stream() const { return is_cupy() ? -1 : 1; }

Stream DlpackTensor::current_stream() const {
  if (view_.device_type != DeviceType::kGpu) return nullptr;
  if (type_.api != nullptr) {
    void* stream = nullptr;
    if (type_.api->current_work_stream(kDLCUDA, view_.device, &stream) != 0) refuse(name_, object_);
    return stream;
  }
  if (is_cupy()) {
    const py::object cuda = py::module_::import("cupy").attr("cuda");
    const py::object stream = cuda.attr("get_current_stream")(py::arg("device_id") = view_.device);
    return reinterpret_cast<Stream>(py::cast<std::uintptr_t>(stream.attr("ptr")));
  }
  return nullptr;
}

py::object DlpackTensor::array_api_empty(const char* name, ElementType type,
                                         const std::vector<std::int64_t>& shape) const {
  try {
    const py::object space = array_namespace(object_);
    const py::object empty = space.attr("empty");
    const py::tuple extents = py::cast(shape);
    py::dict options;
    options["dtype"] = type == view_.type ? object_.attr("dtype") : space.attr("float32");
    if (is_cupy()) {  // it allocates on the current device
      const CurrentCupyDevice current(object_.attr("device"));
      return empty(extents, **options);
    }
    if (py::hasattr(object_, "device"))
      options["device"] = object_.attr("device");
    else if (view_.device_type != DeviceType::kCpu)
      throw SpecError(fmt::format("{} cannot be allocated: a {} does not name its device; give {}=",
                                  name, Py_TYPE(object_.ptr())->tp_name, name));
    return empty(extents, **options);
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_AttributeError) && !error.matches(PyExc_ImportError) &&
        !error.matches(PyExc_TypeError))
      throw;
    throw SpecError(fmt::format("{} cannot be allocated by the framework of a {}: {}; give {}=",
                                name, Py_TYPE(object_.ptr())->tp_name, first_line(error), name));
  }
}

py::object DlpackTensor::empty_like(const char* name, ElementType type,
                                    std::initializer_list<std::int64_t> shape) const {
  if (type_.api == nullptr) return array_api_empty(name, type, shape);
  std::array<std::int64_t, TensorView::kMaxRank> extents{};
  std::copy(shape.begin(), shape.end(), extents.begin());
  DLTensor prototype = {
      .data = nullptr,
      .device = {view_.device_type == DeviceType::kGpu ? kDLCUDA : kDLCPU, view_.device},
      .ndim = static_cast<std::int32_t>(shape.size()),
      .dtype = dlpack_type(type),
      .shape = extents.data(),
      .strides = nullptr,
      .byte_offset = 0};
  AllocationError failure;
  DLManagedTensorVersioned* managed = nullptr;
  if (type_.api->managed_tensor_allocator(&prototype, &managed, &failure, set_allocation_error) !=
      0)
    throw std::runtime_error(fmt::format("{} could not be allocated: {}", name, failure.text));
  void* object = nullptr;
  if (type_.api->managed_tensor_to_py_object_no_sync(managed, &object) != 0)
    throw py::error_already_set();
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
}

}  // namespace lazyrope
