#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "codegen/mask.h"
#include "codegen/rope.h"

namespace lazyrope {

enum class Dtype { kBf16, kFp16, kFp8E4m3, kFp8E5m2 };

// Whether queries (or newly appended keys) arrive as projected, or turned by RoPE already.
enum class RopeForm { kRaw, kRotated };

// How the pool holds keys: rotated by the index inside their own document.
enum class KeyForm { kLocal };

std::string_view to_string(Dtype);
std::string_view to_string(RopeForm);
std::string_view to_string(KeyForm);
Dtype dtype_from(std::string_view name);     // "bfloat16", "float16"; SpecError
Dtype kv_dtype_from(std::string_view name);  // or "float8_e4m3fn", "float8_e5m2"; SpecError
int bytes_of(Dtype dtype);
RopeForm rope_form_from(std::string_view name);  // "raw", "rotated"; SpecError
KeyForm key_form_from(std::string_view name);    // "local"; SpecError

// What is asked for. Everything here specialises the source, or which kernel config it is rendered
// for; page size, layout, scale and, but for whether it is odd, the number of KV heads do not.
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
  double softcap = 0.0;                // scores s become softcap x tanh(s / softcap); 0: they stay
  bool sinks = false;                  // each query head has a logit that takes part in its softmax
  std::optional<Dtype> kv_dtype = {};  // of the pool where it is of 8 bits; else it is of dtype
  bool batch_invariant = false;        // what shares a request's batch changes no bit of its output
  bool has_odd_kv_heads = false;       // of which two at a time leave one

  Dtype pool_dtype() const { return kv_dtype.value_or(dtype); }
  bool has_fp8_pool() const { return bytes_of(pool_dtype()) == 1; }

  bool operator==(const KernelSpec&) const = default;
};

// SpecError that names the field, its value and what is allowed.
void validate(const KernelSpec& spec);

// One line: "head_dim 128, group 4, bfloat16, llama3, causal, raw queries".
std::string describe(const KernelSpec& spec);

}  // namespace lazyrope
