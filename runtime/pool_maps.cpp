#include "runtime/pool_maps.h"

#include <algorithm>

namespace lazyrope {
namespace {

constexpr std::size_t kMostEntries = 256;  // a model's layers

Swizzle swizzle_of(int panel) {
  return panel == 128 ? Swizzle::k128B : panel == 64 ? Swizzle::k64B : Swizzle::k32B;
}

// What the map depends on; scales are no part of it.
bool same_memory(const KvPool& a, const KvPool& b) {
  return a.keys == b.keys && a.values == b.values && a.page_stride == b.page_stride &&
         a.slot_stride == b.slot_stride && a.head_stride == b.head_stride;
}

}  // namespace

PoolMaps encode_pool(const AttentionSpec& spec, const KvPool& pool, std::int64_t pages,
                     int page_size, const Device& device) {
  const int panel = panel_bytes(spec.head_dim);
  const int columns = panel / kElementBytes;
  const int panels = spec.head_dim / columns;
  // A stride that is never taken must be legal none the less.
  const auto stride = [](std::uint32_t bytes, int count) {
    return count > 1 ? static_cast<std::int64_t>(bytes) : kChunkBytes;
  };
  const auto map = [&](void* data, int slots, int box_panels) {
    return device.encode(
        {.data = data,
         .type = element_type(spec.dtype),
         .dims = {columns, page_size, panels, std::max<std::int64_t>(pages, 1), spec.num_kv_heads},
         .strides = {stride(pool.slot_stride, page_size), panel,
                     stride(pool.page_stride, pages > 1 ? 2 : 1),
                     stride(pool.head_stride, spec.num_kv_heads)},
         .box = {columns, slots, box_panels, 1, 1},
         .swizzle = swizzle_of(panel)});
  };
  return {map(pool.keys, kOctetSlots, panels), map(pool.values, kOctetSlots, panels),
          map(pool.values, 1, 1)};
}

PoolMaps PoolMapCache::get(const AttentionSpec& spec, const KvPool& pool, std::int64_t pages,
                           int page_size, const Device& device) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return same_memory(entry.pool, pool) && entry.pages == pages && entry.page_size == page_size &&
           entry.device == &device;
  });
  if (found != entries_.end()) return found->maps;
  const Entry entry = {pool, pages, page_size, &device,
                       encode_pool(spec, pool, pages, page_size, device)};
  if (entries_.size() < kMostEntries) {
    entries_.push_back(entry);
  } else {
    entries_[oldest_] = entry;
    oldest_ = (oldest_ + 1) % kMostEntries;
  }
  return entry.maps;
}

}  // namespace lazyrope
