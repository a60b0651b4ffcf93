#pragma once

#include <dlpack/dlpack.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "runtime/base/tensor.h"
#include "runtime/driver/device.h"

namespace lazyrope {

// The facts about a Python type that decide how its tensors are read.
struct TensorType {
  const DLPackExchangeAPI* api = nullptr;
  bool is_torch = false;
};

// The use of a tensor's memory by a call.
enum class Access { kRead, kWrite };

// A Python tensor for the duration of one call: a tensor of torch, CuPy, NumPy or another framework
// with DLPack. The constructor reads the tensor by the C exchange API of its type, without a
// capsule and without synchronisation. __dlpack__() serves types that have no such API.
class DlpackTensor {
 public:
  // Throws SpecError, which names the argument, if the object is no tensor, if its memory does not
  // hold its values, or if the call writes to it and the tensor is read-only.
  DlpackTensor(const char* name, pybind11::handle object, Access access = Access::kRead);
  DlpackTensor(const DlpackTensor&) = delete;
  DlpackTensor& operator=(const DlpackTensor&) = delete;
  ~DlpackTensor();

  const TensorView& view() const { return view_; }

  // Returns the current stream of the object's framework, if the tensor is on a GPU and its type
  // has the exchange API or is CuPy's. Otherwise it returns the default stream.
  Stream current_stream() const;

  // Returns a new, uninitialised tensor of the same framework on the same device, for the argument
  // `name`. Throws SpecError if the framework cannot be asked for one.
  pybind11::object empty_like(const char* name, ElementType type,
                              std::initializer_list<std::int64_t> shape) const;

 private:
  void view_by_capsule(Access access);
  pybind11::object capsule() const;
  void refuse_torch_state() const;
  pybind11::object array_api_empty(const char* name, ElementType type,
                                   const std::vector<std::int64_t>& shape) const;
  bool is_cupy() const;
  int capsule_stream() const;

  const char* name_;
  pybind11::handle object_;
  const TensorType& type_;
  pybind11::object capsule_;  // owns the memory of the view if there is no exchange API
  TensorView view_;
};

// A tensor or None.
class OptionalTensor {
 public:
  OptionalTensor(const char* name, pybind11::handle object, Access access = Access::kRead) {
    if (!object.is_none()) tensor_.emplace(name, object, access);
  }
  std::optional<TensorView> view() const {
    return tensor_ ? std::optional(tensor_->view()) : std::nullopt;
  }

 private:
  std::optional<DlpackTensor> tensor_;
};

}  // namespace lazyrope
