#pragma once

#include <vector>

#include "runtime/step.h"

namespace lazyrope {

// A step's metadata on the host.
struct StepValues {
  std::vector<int> q_indptr;
  std::vector<int> q_position;
  std::vector<int> segment_indptr;
  std::vector<int> base;
  std::vector<int> start;
  std::vector<int> length;
  std::vector<int> first_page;
  std::vector<int> lead;
  std::vector<int> pages;

  // Waits for the stream.
  static StepValues copy_of(const StepTensors& tensors, const Device& device, Stream stream);
};

// SpecError for the first value that is not legal, naming request and segment.
void check_step_values(const StepValues& values, int page_size, const StepCapacity& capacity);

// SpecError for the first page number, of those that segments refer to, outside the pool.
void check_page_values(const StepValues& values, int page_size, std::int64_t num_pages);

}  // namespace lazyrope
