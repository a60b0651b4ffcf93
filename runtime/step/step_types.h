#pragma once

#include <optional>

#include "runtime/base/tensor.h"

namespace lazyrope {

// The most that a step can hold.
struct StepCapacity {
  int requests = 0;
  int segments = 0;
  int query_tokens = 0;
  int tokens_per_request = 0;  // 0: query_tokens
};

// A step's metadata, all int32 on the device and contiguous. One row per request r in the indptr's:
// its query tokens are q_indptr[r] .. q_indptr[r + 1] - 1, its segments likewise.
struct StepTensors {
  TensorView q_indptr;                  // [requests + 1]
  TensorView q_position;                // [query tokens]: logical positions
  TensorView segment_indptr;            // [requests + 1]
  TensorView base;                      // [segments]: logical position of token 0 of the document
  TensorView start;                     // [segments]: first token that the segment shows
  TensorView length;                    // [segments]: tokens
  TensorView first_page;                // [segments]: index into pages
  TensorView pages;                     // [any]: page lists; referred to by the step, not copied
  std::optional<TensorView> lead = {};  // [segments]: slot of the first token; all 0 by default
};

// Where the KV pool's pages are cut.
enum class KvLayout { kNhd, kHnd };  // [pages, slots, heads, dim] or [pages, heads, slots, dim]

struct PoolFormat {
  int page_size = 16;  // slots, a multiple of 16
  KvLayout layout = KvLayout::kNhd;

  bool operator==(const PoolFormat&) const = default;
};

// Where new keys and values go, all int32 on the device and contiguous. Request r appends rows
// indptr[r] .. indptr[r + 1] - 1 of k and v.
struct AppendTensors {
  TensorView indptr;  // [requests + 1]
  TensorView first;   // [requests]: index in its document of the first row; what keys are turned by
  TensorView first_page;  // [requests]: index into pages
  TensorView lead;   // [requests]: slot of the first row, counted from slot 0 of that page; any
  TensorView pages;  // [any]: page lists
};

// The paged KV pool: two tensors of one shape and the same strides. 8-bit elements are stored
// divided by a scale. A scale is a float32 tensor on the device with one element, or with one for
// each KV head; an absent scale is 1.
struct PoolTensors {
  TensorView keys;
  TensorView values;
  std::optional<TensorView> key_scale = {};
  std::optional<TensorView> value_scale = {};
};

}  // namespace lazyrope
