#pragma once

#include <cstdint>

#include "runtime/driver/device.h"
#include "runtime/engine/kernel.h"
#include "runtime/spec/spec.h"
#include "runtime/step/step_types.h"
#include "templates/abi/attend.h"
#include "templates/abi/key_bias.h"
#include "templates/abi/states.h"

namespace lazyrope {

// Checks and launches that all calls on a paged pool share.

inline constexpr int kElementBytes = 2;  // bytes of an element of queries and results
inline constexpr int kFloatBytes = 4;

// Returns the element type of tensors of a dtype.
ElementType element_type(Dtype dtype);

// Throws SpecError if the pool does not fit the spec or the format. The tensors of a pool of 8-bit
// elements may also be uint8.
void check_pool(const AttentionSpec& spec, const PoolTensors& pool, const PoolFormat& format,
                const Device& device);

// Also throws SpecError if two elements of the pool share memory, or one with a scale. Call it
// before a kernel that writes to the pool.
void check_writable_pool(const AttentionSpec& spec, const PoolTensors& pool,
                         const PoolFormat& format, const Device& device);

// Throws SpecError if the pool has a bias of keys and the spec has none, or the reverse, or if the
// bias does not fit the pool.
void check_key_bias(const AttentionSpec& spec, const PoolTensors& pool, const PoolFormat& format,
                    const Device& device);

// Returns the kernels' parameter for a bias that check_key_bias() has passed.
KeyBias key_bias_params(const PoolTensors& pool);

// Throws SpecError if the pool has the log-sum-exps of entries and the spec has no states, or the
// reverse, or if they do not fit the pool.
void check_entry_lse(const AttentionSpec& spec, const PoolTensors& pool, const PoolFormat& format,
                     const Device& device);

// Returns the kernels' parameter for log-sum-exps that check_entry_lse() has passed.
EntryLse entry_lse_params(const PoolTensors& pool);

// Returns the kernels' parameter for a pool that check_pool() has passed.
KvPool pool_params(const AttentionSpec& spec, const PoolTensors& pool, const PoolFormat& format);

// Launches a kernel that handles each KV head of `tokens` tokens (templates/ops/token_rows.cuh).
void launch_over_tokens(const Kernel& kernel, const AttentionSpec& spec, std::int64_t tokens,
                        const void* params, const Device& device, Stream stream,
                        AccessedMemoryFn accessed_memory);

}  // namespace lazyrope
