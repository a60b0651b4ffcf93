#pragma once

#include <optional>

#include "codegen/kernel_config.h"

namespace lazyrope {

// On an arch of family sm90a, a step can have scratch for rotated keys. A kernel then copies the
// segments of prefill requests from the pool to the scratch, and rotates their keys. The prefill
// kernel of the family attends to the scratch.
//
// From a pool of raw keys, keys are rotated to local form. Decode, and requests that exceed the
// scratch, use the kernels that rotate raw keys at each use. With packed_prefill, local keys are
// rotated by their logical positions, so that one KV block may have keys of several documents. Keys
// and values of 8 bits are widened; attention multiplies by their scales. Decode, and steps in
// which packing saves no time, read the pool.

// Returns the spec of the kernel that attends to rotated keys: the same with local keys in a pool
// of 16 bits.
KernelSpec rotated_keys_spec(KernelSpec spec);

// Returns the config of which that kernel has the prefill tile. There is none for local keys
// without packed_prefill, and where the family has no prefill kernel for the spec. There is also
// none for a batch-invariant spec, because the other requests decide whether a request's keys fit
// into the scratch.
std::optional<KernelConfig> rotated_keys_config(const KernelSpec& spec, const Arch& arch);

}  // namespace lazyrope
