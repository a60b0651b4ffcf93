#pragma once

#include <optional>
#include <string>

#include "codegen/kernel_spec.h"

namespace lazyrope {

// The attention of a model: the heads, the dtypes, RoPE, the mask and the score modifiers. Plain
// data without locks.
struct AttentionSpec {
  int head_dim = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;                // divides num_q_heads
  Dtype dtype = Dtype::kBf16;          // dtype of queries, new keys and values, and results
  std::optional<Dtype> kv_dtype = {};  // the pool's, if it has 8 bits; else it has `dtype`
  RopeSpec rope = {};
  std::string mask = "causal";
  MaskParameters mask_parameters = {};
  double softcap = 0.0;  // 0: none; else a score s becomes softcap x tanh(s / softcap)
  bool sinks = false;    // attend() takes a logit per query head for its softmax
  RopeForm query_form = RopeForm::kRaw;
  KeyForm key_form = KeyForm::kLocal;
  RopeForm append_form = RopeForm::kRaw;
  bool batch_invariant = false;      // output bits do not depend on the other requests of the batch
  std::optional<double> scale = {};  // scales scores, at most 1e6; default 1 / sqrt(head_dim)
  std::optional<QueryTemperature> temperature = {};  // kernels apply it to raw queries alone
  bool cascade = false;    // segments that several requests read are read once for all of them
  bool page_mass = false;  // attend() can give the attention mass of each run of 16 slots
  bool key_bias = false;   // attend() adds a bias to the scores of each key (PoolTensors::key_bias)
  bool packed_prefill = false;        // prefill may copy keys to the step's scratch first
  bool states = false;                // segments can be memories of attention states
  Compute compute = Compute::kDtype;  // the elements that prefill multiplies

  Dtype pool_dtype() const { return kv_dtype.value_or(dtype); }
  int group_size() const { return num_q_heads / num_kv_heads; }
  // New keys arrive as queries do, but raw where the pool holds raw keys.
  RopeForm append_form_by_default() const {
    return key_form == KeyForm::kRaw ? RopeForm::kRaw : query_form;
  }
  // Returns the given scale or its default.
  double softmax_scale() const;
  // Returns the fields that kernels are specialised for.
  KernelSpec kernel_spec() const;

  bool operator==(const AttentionSpec&) const = default;
};

// The RoPE of some models depends on its use, besides their config.
struct RopeUse {
  // The most tokens of a request. Without a value it is max_position_embeddings.
  std::optional<int> max_model_len = {};
  // With raw keys, dynamic NTK scaling beyond max_position_embeddings is that of a request of
  // max_model_len tokens. The keys of the spec have this form.
  KeyForm key_form = KeyForm::kLocal;
};

// Throws SpecError, which names the first illegal field, its value and what is allowed.
void validate(const AttentionSpec& spec);

// Returns the attention of one of `ranks` ranks under tensor parallelism: an equal share of the
// heads. If there are fewer KV heads than ranks, several ranks hold the same KV head. Throws
// SpecError if the heads cannot be divided so.
AttentionSpec tensor_parallel(AttentionSpec spec, int ranks);

}  // namespace lazyrope
