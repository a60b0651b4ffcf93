#pragma once

#include <memory>

#include "runtime/device.h"
#include "runtime/kernel.h"
#include "runtime/step.h"
#include "templates/abi/append.h"

namespace lazyrope {

// Where new keys and values go, all int32 on the device and contiguous. Request r appends rows
// indptr[r] .. indptr[r + 1] - 1 of k and v.
struct AppendTensors {
  TensorView indptr;      // [requests + 1]
  TensorView first;       // [requests]: index in its document of the first row; what keys are turned by
  TensorView first_page;  // [requests]: index into pages
  TensorView lead;        // [requests]: slot of the first row, counted from slot 0 of that page; any
  TensorView pages;       // [any]: page lists
};

// The slots of all tokens that one pass of a model appends, the same for every layer. As a Step: a fixed
// capacity, filled anew on a stream, used by captured graphs.
class AppendStep {
 public:
  // SpecError where the capacity or the page size is illegal.
  AppendStep(std::shared_ptr<const Device> device, std::shared_ptr<const Kernel> planner,
             PoolFormat format, int capacity_tokens);

  // SpecError where the tensors do not fit, or, with `check`, where a value is illegal.
  void update(const AppendTensors& tensors, bool check, Stream stream);

  // As Step::check_pages.
  void check_pages(std::int64_t num_pages, Stream stream) const;

  const std::shared_ptr<const Device>& device() const { return device_; }
  const PoolFormat& format() const { return format_; }
  int capacity() const { return params_.capacity; }
  const AppendRecord* records() const { return params_.records; }

 private:
  std::shared_ptr<const Device> device_;
  std::shared_ptr<const Kernel> planner_;
  PoolFormat format_;
  PlanAppendParams params_{};
  std::unique_ptr<DeviceBuffer> memory_;
};

}  // namespace lazyrope
