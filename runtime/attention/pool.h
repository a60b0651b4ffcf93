#pragma once

#include <cstdint>

#include "runtime/driver/device.h"
#include "runtime/engine/kernel.h"
#include "runtime/spec/spec.h"
#include "runtime/step/step_types.h"
#include "templates/abi/attend.h"

namespace lazyrope {

// What the calls on a paged pool have in common.

inline constexpr int kElementBytes = 2;  // of queries and results
inline constexpr int kChunkBytes = 16;   // that attend copies at once

ElementType element_type(Dtype dtype);

// The pool as kernels take it; one of 8 bits may also come as bytes. SpecError where it does not
// fit the spec or the format.
KvPool checked_pool(const AttentionSpec& spec, const PoolTensors& pool, const PoolFormat& format,
                    const Device& device);

// The same where the kernel writes to it.
KvPool checked_written_pool(const AttentionSpec& spec, const PoolTensors& pool,
                            const PoolFormat& format, const Device& device);

// Launches a kernel over the rows of templates/ops/token_rows.cuh.
void launch_over_tokens(const Kernel& kernel, const AttentionSpec& spec, std::int64_t tokens,
                        const void* params, const Device& device, Stream stream, ReachOf reach);

}  // namespace lazyrope
