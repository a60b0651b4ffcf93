#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>

#include "codegen/kernel_config.h"
#include "runtime/spec/spec.h"

namespace lazyrope {

inline RopeSpec neox(int rotary_dim) { return {"neox", rotary_dim, {{"theta", 10000.0}}}; }

inline RopeSpec llama3(int rotary_dim) {
  return {"llama3",
          rotary_dim,
          {{"theta", 500000.0},
           {"factor", 8.0},
           {"low_freq_factor", 1.0},
           {"high_freq_factor", 4.0},
           {"original_max_position_embeddings", 8192.0}}};
}

// The parameters of gpt-oss, except that attention_factor is 1, as in the other examples.
inline RopeSpec yarn(int rotary_dim) {
  return {"yarn",
          rotary_dim,
          {{"theta", 150000.0},
           {"factor", 32.0},
           {"original_max_position_embeddings", 4096.0},
           {"truncate", 0.0},
           {"attention_factor", 1.0}}};
}

// Returns LongRoPE with divisors that grow from 1 to 16, about those of Phi-3's long list.
inline RopeSpec longrope(int rotary_dim) {
  std::vector<double> factors;
  for (int pair = 0; pair < rotary_dim / 2; ++pair)
    factors.push_back(1.0 + 30.0 * pair / rotary_dim);
  return {"longrope", rotary_dim, {{"theta", 10000.0}}, {{"factors", factors}}};
}

// Returns a valid spec of a RoPE variant. Each new variant needs an example here.
inline RopeSpec example_rope(const std::string& variant, int rotary_dim) {
  if (variant == "none") return {};
  if (variant == "neox") return neox(rotary_dim);
  if (variant == "gptj") return {"gptj", rotary_dim, {{"theta", 10000.0}}};
  if (variant == "linear") return {"linear", rotary_dim, {{"theta", 10000.0}, {"factor", 4.0}}};
  if (variant == "llama3") return llama3(rotary_dim);
  if (variant == "llama3_gptj") return {"llama3_gptj", rotary_dim, llama3(rotary_dim).parameters};
  if (variant == "yarn") return yarn(rotary_dim);
  if (variant == "longrope") return longrope(rotary_dim);
  throw std::logic_error("tests/support/specs.h has no example of rope \"" + variant + "\"");
}

// Returns valid parameters of a mask variant.
inline MaskParameters example_mask(const std::string& mask) {
  MaskParameters parameters;
  for (const MaskParameter& parameter : mask_variant(mask).parameters)
    parameters[parameter.name] = parameter.min + 100;
  return parameters;
}

// Returns the smallest spec that has query groups, several KV heads and a rotation.
inline AttentionSpec small_spec() {
  AttentionSpec spec;
  spec.head_dim = 64;
  spec.num_q_heads = 4;
  spec.num_kv_heads = 2;
  spec.rope = neox(64);
  return spec;
}

// Returns false for specs that kernels do not support: rows of an 8-bit pool must be multiples of
// 16 bytes.
inline bool is_possible(const KernelSpec& spec) {
  if (spec.compute == Compute::kFloat8)
    return std::ranges::count(float8_head_dims(), spec.head_dim) > 0;
  return !spec.has_fp8_pool() || spec.head_dim % 16 == 0;
}
inline bool is_possible(const KernelSpec& spec, const Arch& arch) {
  return is_possible(spec) && (spec.compute == Compute::kDtype || has_family(arch, Family::kSm90a));
}

}  // namespace lazyrope
