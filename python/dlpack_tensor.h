#pragma once

#include <dlpack/dlpack.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "runtime/base/tensor.h"
#include "runtime/driver/device.h"

namespace lazyrope {

// A Python tensor for the length of one call: torch, CuPy, NumPy or whatever else speaks DLPack.
// Uses the type's C exchange API where it has one (no capsule, no synchronisation), else
// __dlpack__().
class DlpackTensor {
 public:
  // SpecError, naming the argument, where the object is no tensor.
  DlpackTensor(const char* name, pybind11::handle object);
  DlpackTensor(const DlpackTensor&) = delete;
  DlpackTensor& operator=(const DlpackTensor&) = delete;
  ~DlpackTensor();

  const TensorView& view() const { return view_; }

  // The stream on which the object's framework does its work now.
  Stream current_stream() const;

  // A new tensor of the same framework on the same device, uninitialised.
  pybind11::object empty_like(ElementType type, std::initializer_list<std::int64_t> shape) const;

 private:
  void view_by_capsule();
  bool is_cupy() const;
  int capsule_stream() const;

  const char* name_;
  pybind11::handle object_;
  const DLPackExchangeAPI* api_;
  pybind11::object capsule_;  // owns the memory that the view points to, without an exchange API
  TensorView view_;
};

// A tensor or None.
class OptionalTensor {
 public:
  OptionalTensor(const char* name, pybind11::handle object) {
    if (!object.is_none()) tensor_.emplace(name, object);
  }
  std::optional<TensorView> view() const {
    return tensor_ ? std::optional(tensor_->view()) : std::nullopt;
  }

 private:
  std::optional<DlpackTensor> tensor_;
};

}  // namespace lazyrope
