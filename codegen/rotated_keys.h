#pragma once

#include <optional>

#include "codegen/kernel_config.h"

namespace lazyrope {

// On an arch of family sm90a, a step can have scratch for rotated keys. A kernel then copies the
// segments of prefill requests from a pool of raw keys to the scratch, and rotates their keys to
// local form. The prefill kernel of the family attends to the scratch. Decode, and requests that
// exceed the scratch, use the kernels that rotate raw keys at each use.

// Returns the spec of the kernel that attends to rotated keys: the same with local keys.
KernelSpec rotated_keys_spec(KernelSpec spec);

// Returns the config of which that kernel has the prefill tile. There is none for local keys, and
// where the family has no prefill kernel for the spec. There is also none for a batch-invariant
// spec, because the other requests decide whether a request's keys fit into the scratch.
std::optional<KernelConfig> rotated_keys_config(const KernelSpec& spec, const Arch& arch);

}  // namespace lazyrope
