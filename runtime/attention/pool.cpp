#include "runtime/attention/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "codegen/error.h"
#include "runtime/step/checks.h"

namespace lazyrope {
namespace {

constexpr int kElementsPerTask = 4;  // about what a thread copies in one iteration
constexpr int kMaxCtas = 4096;

// Returns the stride of a dimension, or 0 if the dimension has one element. Its stride is then not
// used, and may be too large for 32 bits.
std::int64_t used_stride(const TensorView& t, int dimension) {
  const auto at = static_cast<std::size_t>(dimension);
  return t.shape[at] > 1 ? t.strides[at] : 0;
}

void check_same_layout(const PoolTensors& pool) {
  const TensorView& k = pool.keys;
  const TensorView& v = pool.values;
  for (int i = 0; i < k.rank; ++i)
    if (k.shape[static_cast<std::size_t>(i)] != v.shape[static_cast<std::size_t>(i)] ||
        used_stride(k, i) != used_stride(v, i))
      throw SpecError(
          fmt::format("k_pool is {}, v_pool is {}; both must have the same shape and strides",
                      describe(k), describe(v)));
}

// The dimensions of the pool's tensors that count slots and heads.
struct PoolDims {
  int slots;
  int heads;
};

PoolDims pool_dims(KvLayout layout) {
  return layout == KvLayout::kNhd ? PoolDims{1, 2} : PoolDims{2, 1};
}

struct PoolStrides {  // in bytes
  std::int64_t page;
  std::int64_t slot;
  std::int64_t head;
};

PoolStrides pool_strides(const TensorView& keys, KvLayout layout, int element_bytes) {
  const PoolDims dims = pool_dims(layout);
  return {used_stride(keys, 0) * element_bytes, used_stride(keys, dims.slots) * element_bytes,
          used_stride(keys, dims.heads) * element_bytes};
}

void check_stride(const char* name, std::int64_t bytes) {
  if (std::cmp_greater(bytes, std::numeric_limits<std::uint32_t>::max()))
    throw SpecError(fmt::format("the pool's {} stride is {} bytes; at most {} are possible", name,
                                bytes, std::numeric_limits<std::uint32_t>::max()));
}

// Kernels compute addresses inside a page in 32 bits.
void check_page_span(const KvPool& pool, const TensorView& keys, int slots, int heads) {
  const std::uint64_t span =
      static_cast<std::uint64_t>(pool.slot_stride) * static_cast<std::uint64_t>(slots) +
      static_cast<std::uint64_t>(pool.head_stride) * static_cast<std::uint64_t>(heads);
  if (span > std::numeric_limits<std::uint32_t>::max())
    throw SpecError(fmt::format("k_pool is {}; a page spans {} bytes, at most {} are possible",
                                describe(keys), span, std::numeric_limits<std::uint32_t>::max()));
}

void check_pool_type(const char* name, const TensorView& t, Dtype dtype) {
  const bool is_raw = t.type == ElementType::kUint8 && bytes_of(dtype) == 1;
  if (!is_raw) check_type(name, t, element_type(dtype));
}

void check_scales(const char* name, const std::optional<TensorView>& scales,
                  const AttentionSpec& spec, const Device& device) {
  if (!scales) return;
  if (bytes_of(spec.pool_dtype()) == 2)
    throw SpecError(
        fmt::format("{} is given; a pool of {} has no scales", name, to_string(spec.pool_dtype())));
  check_type(name, *scales, ElementType::kFp32);
  check_on_device(name, *scales, device);
  const std::int64_t count = scales->elements();
  const bool per_head = scales->rank == 1 && count == spec.num_kv_heads;
  if (!scales->is_contiguous() || (count != 1 && !per_head))
    throw SpecError(fmt::format("{} is {}; it must be one element, or contiguous [kv_heads] = [{}]",
                                name, describe(*scales), spec.num_kv_heads));
  check_alignment(name, *scales, kFloatBytes);
}

const float* scale_data(const std::optional<TensorView>& scales) {
  return scales ? static_cast<const float*>(scales->data) : nullptr;
}

// Returns the bytes from one head's scale to the next, which are 0 for a single scale.
std::uint32_t scale_stride(const std::optional<TensorView>& scales) {
  return scales && scales->elements() > 1 ? kFloatBytes : 0;
}

void check_pool_tensor(const char* name, const TensorView& t, const AttentionSpec& spec,
                       const PoolFormat& format, const Device& device) {
  const PoolDims dims = pool_dims(format.layout);
  check_pool_type(name, t, spec.pool_dtype());
  check_rank(name, t, 4,
             format.layout == KvLayout::kNhd
                 ? "[pages, page_size, kv_heads, head_dim] (layout NHD)"
                 : "[pages, kv_heads, page_size, head_dim] (layout HND)");
  check_on_device(name, t, device);
  check_extent(name, t, dims.slots, format.page_size, "page_size");
  check_extent(name, t, dims.heads, spec.num_kv_heads, "kv_heads");
  check_extent(name, t, 3, spec.head_dim, "head_dim");
  check_rows(name, t, bytes_of(spec.pool_dtype()), kChunkBytes);
}

}  // namespace

ElementType element_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16:
      return ElementType::kBf16;
    case Dtype::kFp16:
      return ElementType::kFp16;
    case Dtype::kFp8E4m3:
      return ElementType::kFp8E4m3;
    case Dtype::kFp8E5m2:
      return ElementType::kFp8E5m2;
  }
  return ElementType::kOther;
}

void check_pool(const AttentionSpec& spec, const PoolTensors& pool, const PoolFormat& format,
                const Device& device) {
  check_pool_tensor("k_pool", pool.keys, spec, format, device);
  check_pool_tensor("v_pool", pool.values, spec, format, device);
  check_same_layout(pool);
  check_scales("k_scale", pool.key_scale, spec, device);
  check_scales("v_scale", pool.value_scale, spec, device);
  const PoolStrides strides = pool_strides(pool.keys, format.layout, bytes_of(spec.pool_dtype()));
  check_stride("page", strides.page);
  check_stride("slot", strides.slot);
  check_stride("head", strides.head);
  check_page_span(pool_params(spec, pool, format), pool.keys, format.page_size, spec.num_kv_heads);
}

void check_writable_pool(const AttentionSpec& spec, const PoolTensors& pool,
                         const PoolFormat& format, const Device& device) {
  check_no_internal_overlap("k_pool", pool.keys);
  check_no_internal_overlap("v_pool", pool.values);
  check_pool(spec, pool, format, device);
  check_no_overlap("k_pool", pool.keys, "v_pool", pool.values);
  for (const auto& [name, tensor] :
       {std::pair("k_pool", &pool.keys), std::pair("v_pool", &pool.values)}) {
    check_no_overlap(name, *tensor, "k_scale", pool.key_scale);
    check_no_overlap(name, *tensor, "v_scale", pool.value_scale);
  }
}

void check_key_bias(const AttentionSpec& spec, const PoolTensors& pool, const PoolFormat& format,
                    const Device& device) {
  if (spec.key_bias && !pool.key_bias)
    throw SpecError(
        "the spec has key_bias; give key_bias=, a float32 tensor [pages, kv_heads, page_size], 0 "
        "for keys without a bias");
  if (!spec.key_bias && pool.key_bias)
    throw SpecError("key_bias is given; the spec has none (key_bias=True makes calls take it)");
  if (!pool.key_bias) return;
  const TensorView& bias = *pool.key_bias;
  check_type("key_bias", bias, ElementType::kFp32);
  check_rank("key_bias", bias, 3, "[pages, kv_heads, page_size]");
  check_on_device("key_bias", bias, device);
  check_extent("key_bias", bias, 0, pool.keys.shape[0], "pages, as k_pool");
  check_extent("key_bias", bias, 1, spec.num_kv_heads, "kv_heads");
  check_extent("key_bias", bias, 2, format.page_size, "page_size");
  check_rows("key_bias", bias, kFloatBytes, kChunkBytes);
  const std::int64_t chunks = (bias.shape[0] * used_stride(bias, 0) +
                               bias.shape[1] * used_stride(bias, 1) + bias.shape[2]) /
                              kBiasChunkFloats;
  if (used_stride(bias, 0) < 0 || used_stride(bias, 1) < 0 ||
      std::cmp_greater(chunks, std::numeric_limits<std::uint32_t>::max()))
    throw SpecError(fmt::format(
        "key_bias is {}; its strides must not be negative, and it may span at most {} "
        "bytes",
        describe(bias), std::int64_t{std::numeric_limits<std::uint32_t>::max()} * kChunkBytes));
}

KeyBias key_bias_params(const PoolTensors& pool) {
  if (!pool.key_bias) return {};
  const TensorView& bias = *pool.key_bias;
  const auto chunks = [&](int dimension) {
    return static_cast<std::uint32_t>(used_stride(bias, dimension) / kBiasChunkFloats);
  };
  return {static_cast<const float*>(bias.data), chunks(0), chunks(1)};
}

void check_entry_lse(const AttentionSpec& spec, const PoolTensors& pool, const PoolFormat& format,
                     const Device& device) {
  if (spec.states && !pool.entry_lse)
    throw SpecError(
        "the spec has states; give entry_lse=, a float32 tensor [pages, kv_heads, page_size] with "
        "the LSE of each slot that has an entry");
  if (!spec.states && pool.entry_lse)
    throw SpecError("entry_lse is given; the spec has no states (states=True makes calls take it)");
  if (!pool.entry_lse) return;
  const TensorView& lse = *pool.entry_lse;
  check_type("entry_lse", lse, ElementType::kFp32);
  check_rank("entry_lse", lse, 3, "[pages, kv_heads, page_size]");
  check_on_device("entry_lse", lse, device);
  check_extent("entry_lse", lse, 0, pool.keys.shape[0], "pages, as k_pool");
  check_extent("entry_lse", lse, 1, spec.num_kv_heads, "kv_heads");
  check_extent("entry_lse", lse, 2, format.page_size, "page_size");
  check_alignment("entry_lse", lse, kFloatBytes);
  const std::int64_t page = std::int64_t{spec.num_kv_heads} * format.page_size;
  const auto has_stride = [&](std::size_t dimension, std::int64_t stride) {
    return lse.shape[dimension] <= 1 || lse.strides[dimension] == stride;
  };
  if (!has_stride(2, 1) || !has_stride(1, format.page_size) || !has_stride(0, page))
    throw SpecError(
        fmt::format("entry_lse has the strides {}, {} and {}; it must be contiguous: {}, {} and 1",
                    lse.strides[0], lse.strides[1], lse.strides[2], page, format.page_size));
  if (lse.shape[0] * page >= kMaxLses)
    throw SpecError(
        fmt::format("a pool of {} pages with states; with {} KV heads and pages of {} slots it can "
                    "have at most {} pages",
                    lse.shape[0], spec.num_kv_heads, format.page_size, (kMaxLses - 1) / page));
}

EntryLse entry_lse_params(const PoolTensors& pool) {
  if (!pool.entry_lse) return {};
  const TensorView& lse = *pool.entry_lse;
  return {static_cast<const float*>(lse.data), static_cast<int32>(lse.shape[1]),
          static_cast<int32>(lse.shape[2])};
}

KvPool pool_params(const AttentionSpec& spec, const PoolTensors& pool, const PoolFormat& format) {
  const PoolStrides strides = pool_strides(pool.keys, format.layout, bytes_of(spec.pool_dtype()));
  return {.keys = pool.keys.data,
          .values = pool.values.data,
          .key_scales = scale_data(pool.key_scale),
          .value_scales = scale_data(pool.value_scale),
          .page_stride = static_cast<std::uint32_t>(strides.page),
          .slot_stride = static_cast<std::uint32_t>(strides.slot),
          .head_stride = static_cast<std::uint32_t>(strides.head),
          .key_scale_stride = scale_stride(pool.key_scale),
          .value_scale_stride = scale_stride(pool.value_scale),
          .unused = 0};
}

void launch_over_tokens(const Kernel& kernel, const AttentionSpec& spec, std::int64_t tokens,
                        const void* params, const Device& device, Stream stream,
                        AccessedMemoryFn accessed_memory) {
  const int threads = kernel.binary().threads;
  const std::int64_t tasks = tokens * spec.num_kv_heads * spec.head_dim / kElementsPerTask;
  const std::int64_t ctas = (tasks + threads - 1) / threads;
  kernel.on(device).launch(static_cast<int>(std::min<std::int64_t>(ctas, kMaxCtas)), params, stream,
                           accessed_memory);
}

}  // namespace lazyrope
