#pragma once

#include <cstddef>
#include <vector>

#include "runtime/step/step_types.h"
#include "tests/support/host_tensor.h"

namespace lazyrope {

// Returns an element of an array that is indexed by int.
inline int at(const std::vector<int>& values, int i) { return values[static_cast<std::size_t>(i)]; }

// The values of StepTensors.
struct StepArrays {
  std::vector<int> q_indptr;
  std::vector<int> q_position;
  std::vector<int> segment_indptr;
  std::vector<int> base;
  std::vector<int> start;
  std::vector<int> length;
  std::vector<int> first_page;
  std::vector<int> pages;
  std::vector<int> lead;

  StepTensors tensors() {
    return {.q_indptr = ints(q_indptr),
            .q_position = ints(q_position),
            .segments = {ints(segment_indptr), ints(base), ints(start), ints(length),
                         ints(first_page), ints(lead)},
            .pages = ints(pages)};
  }
};

// The values of AppendTensors.
struct AppendArrays {
  std::vector<int> indptr;
  std::vector<int> start;
  std::vector<int> first_page;
  std::vector<int> lead;
  std::vector<int> pages;

  AppendTensors tensors() {
    return {.spans = {ints(indptr), ints(start), ints(first_page), ints(lead)},
            .pages = ints(pages)};
  }
};

}  // namespace lazyrope
