#pragma once

#include <optional>
#include <string>

#include "runtime/base/tensor.h"

namespace lazyrope {

// The most that a step can hold.
struct StepCapacity {
  int requests = 0;
  int segments = 0;
  int query_tokens = 0;
  int tokens_per_request = 0;  // 0: query_tokens
  // Tokens of the segments of prefill requests that the step has scratch for, in whole runs of 16
  // slots of each segment. Only pools of raw keys and packed_prefill use it
  // (codegen/rotated_keys.h). 0: no scratch.
  int rotated_tokens = 0;
  // Pairs of a query token and a run of 16 slots of its request for which the step has room for
  // page masses. Only specs with page_mass use it. 0: calls can give none.
  int mass_pages = 0;
};

std::string to_string(const StepCapacity& capacity);

// The segments of all requests of a step, all int32 on the device and contiguous. Request r has
// segments indptr[r] .. indptr[r + 1] - 1.
struct Segments {
  TensorView indptr;                    // [requests + 1]
  TensorView base;                      // [segments]: logical position of token 0 of the document
  TensorView start;                     // [segments]: document index of the first token
  TensorView length;                    // [segments]: tokens
  TensorView first_page;                // [segments]: index into the step's pages
  std::optional<TensorView> lead = {};  // [segments]: slot of the first token; all 0 by default
  // [segments]: position of token 0 of the document in the order of the mask; base by default
  std::optional<TensorView> mask_base = {};
  // [segments], in specs with states: 0 where a segment has tokens; all 0 by default. 1 to 4:
  // entries of the request's memory of that number. All segments of one number are one memory. 8 is
  // added if each entry serves one query head: entry i, counted from the segment's first, serves
  // head i % group_size of each KV head. 16 m is added if the entries are in cells of m: after all
  // cells comes the centre of each (templates/abi/states.h).
  std::optional<TensorView> memory = {};
};

// A step's metadata, all int32 on the device and contiguous. The query tokens of request r are rows
// q_indptr[r] .. q_indptr[r + 1] - 1 of q.
struct StepTensors {
  TensorView q_indptr;    // [requests + 1]
  TensorView q_position;  // [query tokens]: logical positions
  Segments segments;
  TensorView pages;  // [any]: page lists; the step refers to them and copies nothing
  // [requests]: the last query tokens of each request whose attention counts for page masses, in
  // specs with page_mass; all by default. Numbers outside 0 .. query tokens count as the nearest.
  std::optional<TensorView> mass_tokens = {};
};

// The order of the dimensions in the shape of the KV pool. Strides give their order in memory.
enum class KvLayout { kNhd, kHnd };  // [pages, slots, heads, dim] or [pages, heads, slots, dim]

struct PoolFormat {
  int page_size = 16;  // slots, a multiple of 16
  KvLayout layout = KvLayout::kNhd;

  bool operator==(const PoolFormat&) const = default;
};

// The most that an append step can hold.
struct AppendCapacity {
  int tokens = 0;
  std::optional<int> spans = {};  // unlimited by default
};

// Runs of tokens of documents, all int32 on the device and contiguous. Rows indptr[s] ..
// indptr[s + 1] - 1 of k and v are span s.
struct TokenSpans {
  TensorView indptr;      // [spans + 1]
  TensorView start;       // [spans]: document index of the first token; keys are rotated by it
  TensorView first_page;  // [spans]: index into the page lists
  // [spans]: slot of the first token, counted from slot 0 of that page; it may exceed the page. All
  // 0 by default.
  std::optional<TensorView> lead = {};
};

// The slots for new keys and values.
struct AppendTensors {
  TokenSpans spans;
  TensorView pages;  // [any]: page lists
};

// A slot for each row of k and v, as in vLLM's slot mapping. Both tensors are int64 on the device
// and contiguous.
struct TokenSlots {
  TensorView slot_mapping;  // [tokens]: page * page_size + slot; a negative number skips the row
  TensorView index;         // [tokens]: index of the token in its document; keys are rotated by it
};

// The paged KV pool: two tensors of one shape and the same strides. 8-bit elements are stored
// divided by a scale. A scale is a float32 tensor on the device with one element, or with one for
// each KV head; an absent scale is 1. The bias of keys, [pages, kv_heads, page_size] float32, is
// required by attention whose spec has key_bias and refused otherwise; append ignores it. entry_lse
// has the log-sum-exps of the entries of memories. It has the shape of key_bias and must be
// contiguous. It is required by attention whose spec has states and refused otherwise; append
// ignores it.
struct PoolTensors {
  TensorView keys;
  TensorView values;
  std::optional<TensorView> key_scale = {};
  std::optional<TensorView> value_scale = {};
  std::optional<TensorView> key_bias = {};
  std::optional<TensorView> entry_lse = {};
};

}  // namespace lazyrope
