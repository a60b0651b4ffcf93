#include "runtime/spec/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "codegen/error.h"

namespace lazyrope {

double AttentionSpec::softmax_scale() const {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

KernelSpec AttentionSpec::kernel_spec() const {
  return {head_dim,
          group_size(),
          dtype,
          rope,
          mask,
          query_form,
          key_form,
          append_form,
          mask_parameters,
          softcap,
          sinks,
          kv_dtype,
          batch_invariant,
          num_kv_heads % 2 != 0,
          temperature,
          cascade,
          page_mass,
          key_bias,
          packed_prefill,
          states,
          /*scaled=*/false,
          compute};
}

void validate(const AttentionSpec& spec) {
  if (spec.num_kv_heads < 1)
    throw SpecError(fmt::format("num_kv_heads = {}; it must be at least 1", spec.num_kv_heads));
  if (spec.num_q_heads < 1 || spec.num_q_heads % spec.num_kv_heads != 0)
    throw SpecError(fmt::format("num_q_heads = {} with num_kv_heads = {}; it must be a multiple",
                                spec.num_q_heads, spec.num_kv_heads));
  constexpr double kMaxScale = 1e6;
  if (spec.scale && !(*spec.scale > 0.0 && *spec.scale <= kMaxScale))
    throw SpecError(fmt::format("scale = {}; it must be a positive number of at most {}",
                                *spec.scale, kMaxScale));
  validate(spec.kernel_spec());
}

AttentionSpec tensor_parallel(AttentionSpec spec, int ranks) {
  if (ranks < 1) throw SpecError(fmt::format("tensor_parallel = {}; it must be at least 1", ranks));
  const bool divides_kv = spec.num_kv_heads % ranks == 0 || ranks % spec.num_kv_heads == 0;
  if (spec.num_q_heads % ranks != 0 || !divides_kv)
    throw SpecError(fmt::format(
        "tensor_parallel = {} with {} query and {} KV heads; it must divide the query heads, and "
        "divide the KV heads or be a multiple of them",
        ranks, spec.num_q_heads, spec.num_kv_heads));
  spec.num_q_heads /= ranks;
  spec.num_kv_heads = std::max(spec.num_kv_heads / ranks, 1);
  return spec;
}

}  // namespace lazyrope
