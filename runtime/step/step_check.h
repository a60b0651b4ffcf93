#pragma once

#include <optional>
#include <vector>

#include "runtime/step/step.h"

namespace lazyrope {

// A step's metadata on the host. Absent leads are zeros, and absent mask_bases are bases.
struct StepValues {
  std::vector<int> q_indptr;
  std::vector<int> q_position;
  std::vector<int> segment_indptr;
  std::vector<int> base;
  std::vector<int> start;
  std::vector<int> length;
  std::vector<int> first_page;
  std::vector<int> lead;
  std::vector<int> mask_base;
  std::vector<int> memory;  // empty if no segment is a memory
  std::vector<int> pages;

  // Copies the tensors from the device. Waits for the stream.
  static StepValues copy_of(const StepTensors& tensors, const Device& device, Stream stream);
};

// Throws a SpecError that names request and segment for the first illegal value. Pages are compared
// with the pool only if `num_pages` is given.
void check_step_values(const StepValues& values, int page_size, const StepCapacity& capacity,
                       std::optional<std::int64_t> num_pages = {});

}  // namespace lazyrope
