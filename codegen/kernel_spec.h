#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "codegen/mask.h"
#include "codegen/rope.h"

namespace lazyrope {

enum class Dtype { kBf16, kFp16, kFp8E4m3, kFp8E5m2 };

// The form in which queries or newly appended keys arrive: raw (as projected), or already rotated.
// Rotated queries are rotated by their position, rotated keys by their index in the document.
enum class RopeForm { kRaw, kRotated };

// The form in which the pool holds keys. A local key is rotated by its index inside its own
// document. A raw key is not rotated, and the kernel rotates it at each use: one pool then serves
// several RoPE tables.
enum class KeyForm { kLocal, kRaw };

// The type of the elements that the products of prefill multiply: the dtype of the queries, or 8
// bits. With 8 bits, queries and softmax weights are rounded to float8_e4m3fn, and the pool has
// such elements, too. Decode always multiplies elements of the queries' dtype.
enum class Compute { kDtype, kFloat8 };

// A temperature of queries by their position, as in Llama 4 and Ministral 3: the scores of a query
// at logical position p are multiplied by 1 + beta ln(1 + floor((p + offset) / interval)).
struct QueryTemperature {
  double beta = 0.0;
  int interval = 0;  // positions
  int offset = 0;    // positions

  bool operator==(const QueryTemperature&) const = default;
};

int bytes_of(Dtype dtype);

// These functions convert to and from the names of the Python API. Those that take a name throw
// SpecError, which lists the allowed names.
std::string_view to_string(Dtype);
std::string_view to_string(RopeForm);
std::string_view to_string(KeyForm);
std::string_view to_string(Compute);
Dtype dtype_from(std::string_view name);         // "bfloat16" or "float16"
Dtype kv_dtype_from(std::string_view name);      // also "float8_e4m3fn" or "float8_e5m2"
RopeForm rope_form_from(std::string_view name);  // "raw" or "rotated"
KeyForm key_form_from(std::string_view name);    // "local" or "raw"
Compute compute_from(std::string_view name);     // "dtype" or "float8"

// The attention that kernels compute, and the form of appended keys. Every field changes the source
// of a kernel or the choice of its config. Page size, layout and scale are no fields, because they
// change neither; of the number of KV heads only the parity matters. Several threads may read a
// spec at once.
struct KernelSpec {
  int head_dim = 0;
  int group_size = 0;  // query heads per KV head
  Dtype dtype = Dtype::kBf16;
  RopeSpec rope;
  std::string mask = "causal";
  RopeForm query_form = RopeForm::kRaw;
  KeyForm key_form = KeyForm::kLocal;
  RopeForm append_form = RopeForm::kRaw;
  MaskParameters mask_parameters = {};
  double softcap = 0.0;  // 0: none; else a score s becomes softcap x tanh(s / softcap)
  bool sinks = false;    // the softmax of each query head has one more logit, without a row of V
  std::optional<Dtype> kv_dtype = {};  // the pool's dtype; without a value it is `dtype`
  bool batch_invariant = false;   // output bits do not depend on the other requests of the batch
  bool has_odd_kv_heads = false;  // if true, KV heads cannot be paired in work tiles
  std::optional<QueryTemperature> temperature = {};  // kernels apply it to raw queries alone
  bool cascade = false;         // segments that several requests read are read once for all of them
  bool page_mass = false;       // calls can give the attention mass of each run of 16 slots
  bool key_bias = false;        // calls add a bias to the scores of each key, one for each KV head
  bool packed_prefill = false;  // prefill may copy keys first, so that blocks mix documents
  bool states = false;          // segments can be memories of attention states
  bool scaled = false;          // keys and values of 16 bits have scales (codegen/rotated_keys.h)
  Compute compute = Compute::kDtype;  // the elements of prefill's products

  Dtype pool_dtype() const { return kv_dtype.value_or(dtype); }
  bool has_fp8_pool() const { return bytes_of(pool_dtype()) == 1; }

  bool operator==(const KernelSpec&) const = default;
};

// Throws SpecError, which names the first illegal field, its value and what is allowed.
void validate(const KernelSpec& spec);

// Returns one line such as "head_dim 128, group 4, bfloat16, rope llama3, causal, raw queries".
std::string describe(const KernelSpec& spec);

}  // namespace lazyrope
