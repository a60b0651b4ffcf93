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
const DLPackExchangeAPI* exchange_api(PyTypeObject* type) {
  static std::unordered_map<PyTypeObject*, const DLPackExchangeAPI*> known;
  const auto it = known.find(type);
  if (it != known.end()) return it->second;
  const DLPackExchangeAPI* api = lookup_exchange_api(type);
  Py_INCREF(type);  // no other type may get the address that is the table's key
  known.emplace(type, api);
  return api;
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

[[noreturn]] void refuse(const char* name, py::handle object, const py::error_already_set& error) {
  const std::string text = error.what();  // the first line: PyTorch adds a C++ stack trace
  throw SpecError(fmt::format("{} ({}) cannot be used as a tensor: {}", name,
                              Py_TYPE(object.ptr())->tp_name, text.substr(0, text.find('\n'))));
}

// Refuses the tensor with the Python error that its framework has set.
[[noreturn]] void refuse(const char* name, py::handle object) {
  refuse(name, object, py::error_already_set());
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

DlpackTensor::DlpackTensor(const char* name, py::handle object)
    : name_(name), object_(object), api_(exchange_api(Py_TYPE(object.ptr()))) {
  if (api_ == nullptr) {
    view_by_capsule();
    return;
  }
  DLTensor tensor;
  if (api_->dltensor_from_py_object_no_sync(object.ptr(), &tensor) != 0) refuse(name, object);
  view_ = view_of(name, tensor);
}

DlpackTensor::~DlpackTensor() = default;

void DlpackTensor::view_by_capsule() {
  if (!py::hasattr(object_, "__dlpack__"))
    throw SpecError(
        fmt::format("{} is a {}; it must be a tensor (torch, CuPy, or another that has "
                    "__dlpack__)",
                    name_, Py_TYPE(object_.ptr())->tp_name));
  try {
    capsule_ = on_host(object_) ? object_.attr("__dlpack__")()
                                : object_.attr("__dlpack__")(py::arg("stream") = capsule_stream());
  } catch (const py::error_already_set& error) {
    refuse(name_, object_, error);
  }
  const auto* managed =
      static_cast<const DLManagedTensor*>(PyCapsule_GetPointer(capsule_.ptr(), "dltensor"));
  if (managed == nullptr) refuse(name_, object_);
  view_ = view_of(name_, managed->dl_tensor);
}

bool DlpackTensor::is_cupy() const { return module_of(object_).starts_with("cupy"); }

// Returns the argument `stream` of __dlpack__, on which the data must be ready. -1: no stream
// waits, for kernels are launched on CuPy's current stream. 1: the default stream, on which kernels
// are launched for tensors of other frameworks.
int DlpackTensor::capsule_stream() const { return is_cupy() ? -1 : 1; }

Stream DlpackTensor::current_stream() const {
  if (view_.device_type != DeviceType::kGpu) return nullptr;
  if (api_ != nullptr) {
    void* stream = nullptr;
    if (api_->current_work_stream(kDLCUDA, view_.device, &stream) != 0) refuse(name_, object_);
    return stream;
  }
  if (is_cupy()) {
    const py::object cuda = py::module_::import("cupy").attr("cuda");
    const py::object stream = cuda.attr("get_current_stream")(py::arg("device_id") = view_.device);
    return reinterpret_cast<Stream>(py::cast<std::uintptr_t>(stream.attr("ptr")));
  }
  return nullptr;
}

py::object DlpackTensor::empty_like(ElementType type,
                                    std::initializer_list<std::int64_t> shape) const {
  if (api_ == nullptr) {
    const py::object space = array_namespace(object_);
    const py::object dtype =
        type == view_.type ? py::object(object_.attr("dtype")) : py::object(space.attr("float32"));
    const py::tuple extents = py::cast(std::vector<std::int64_t>(shape));
    if (!is_cupy()) return space.attr("empty")(extents, py::arg("dtype") = dtype);
    const CurrentCupyDevice current(
        object_.attr("device"));  // CuPy allocates on the current device
    return space.attr("empty")(extents, py::arg("dtype") = dtype);
  }
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
  if (api_->managed_tensor_allocator(&prototype, &managed, &failure, set_allocation_error) != 0)
    throw std::runtime_error(fmt::format("the output could not be allocated: {}", failure.text));
  void* object = nullptr;
  if (api_->managed_tensor_to_py_object_no_sync(managed, &object) != 0)
    throw py::error_already_set();
  return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
}

}  // namespace lazyrope
