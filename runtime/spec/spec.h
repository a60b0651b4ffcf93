#pragma once

#include <optional>
#include <string>

#include "codegen/kernel_spec.h"

namespace lazyrope {

// An attention as a model has it.
struct AttentionSpec {
  int head_dim = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;                // divides num_q_heads
  Dtype dtype = Dtype::kBf16;          // of queries, new keys and values, and results
  std::optional<Dtype> kv_dtype = {};  // of the pool where it is of 8 bits; else it is of dtype
  RopeSpec rope = {};
  std::string mask = "causal";
  MaskParameters mask_parameters = {};
  double softcap = 0.0;  // scores s become softcap x tanh(s / softcap); 0: they stay
  bool sinks = false;    // attend() takes a logit of each query head that takes part in its softmax
  RopeForm query_form = RopeForm::kRaw;
  KeyForm key_form = KeyForm::kLocal;
  RopeForm append_form = RopeForm::kRaw;
  bool batch_invariant = false;      // what shares a request's batch changes no bit of its output
  std::optional<double> scale = {};  // of the scores, at most 1e6; 1 / sqrt(head_dim) if not given

  Dtype pool_dtype() const { return kv_dtype.value_or(dtype); }
  int group_size() const { return num_q_heads / num_kv_heads; }
  double softmax_scale() const;
  KernelSpec kernel_spec() const;

  bool operator==(const AttentionSpec&) const = default;
};

// SpecError that names the field, its value and what is allowed.
void validate(const AttentionSpec& spec);

// What each of so many ranks has of an attention that tensor parallelism divides among them: an
// equal share of the heads; where there are fewer KV heads than ranks, each is on several.
// SpecError if heads cannot be divided so.
AttentionSpec tensor_parallel(AttentionSpec spec, int ranks);

}  // namespace lazyrope
