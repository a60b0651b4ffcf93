#include "codegen/rotated_keys.h"

namespace lazyrope {

KernelSpec rotated_keys_spec(KernelSpec spec) {
  spec.key_form = KeyForm::kLocal;
  spec.packed_prefill = false;
  spec.scaled = spec.has_fp8_pool();
  spec.kv_dtype.reset();
  return spec;
}

std::optional<KernelConfig> rotated_keys_config(const KernelSpec& spec, const Arch& arch) {
  const bool has_scratch = spec.key_form == KeyForm::kRaw || spec.packed_prefill;
  if (!has_scratch || spec.batch_invariant) return {};
  const KernelConfig config = configs(rotated_keys_spec(spec), arch).front();
  if (config.prefill.family != Family::kSm90a) return {};
  return config;
}

}  // namespace lazyrope
