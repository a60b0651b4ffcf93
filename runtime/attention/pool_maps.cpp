#include "runtime/attention/pool_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "codegen/error.h"

namespace lazyrope {
namespace {

constexpr std::size_t kMaxEntries = 1024;

Swizzle swizzle_of(int panel) {
  return panel == 128 ? Swizzle::k128B : panel == 64 ? Swizzle::k64B : Swizzle::k32B;
}

// The boxes in which TMA copies a row of one head. A 16-bit row is copied in panels, each swizzled
// for the MMA. An 8-bit row is copied whole and without a swizzle, because it is converted to 16
// bits before the MMA; or in panels like a 16-bit row of as many bytes, for products of 8 bits.
struct RowBoxes {
  ElementType type;
  int columns;  // columns of a panel
  int bytes;    // bytes of a panel
  int limit;    // columns of the tensor; TMA writes zeros for a box's other columns
  Swizzle swizzle;
};
RowBoxes row_boxes(const AttentionSpec& spec) {
  const ElementType type = element_type(spec.pool_dtype());
  if (spec.compute == Compute::kFloat8) {
    const int panel = panel_bytes(spec.head_dim / kElementBytes);
    return {type, panel, panel, panel, swizzle_of(panel)};
  }
  if (bytes_of(type) == 1)
    return {type, spec.head_dim, spec.head_dim, spec.head_dim, Swizzle::kNone};
  const int panel = panel_bytes(spec.head_dim), columns = panel / kElementBytes;
  const int limit = is_padded(spec.head_dim) ? spec.head_dim : columns;
  return {type, columns, panel, limit, swizzle_of(panel)};
}

// Returns true if the maps of the two pools are the same; they do not depend on scales.
bool same_memory(const KvPool& a, const KvPool& b) {
  return a.keys == b.keys && a.values == b.values && a.page_stride == b.page_stride &&
         a.slot_stride == b.slot_stride && a.head_stride == b.head_stride;
}

// Returns the page stride in octets of 8 slots, or 0 if it is not a whole number of octets.
std::int64_t octets_per_page(const KvPool& pool, std::int64_t pages, int page_size) {
  const std::int64_t in_page = page_size / kOctetSlots;
  if (pages <= 1) return in_page;
  const std::int64_t octet = std::int64_t{kOctetSlots} * pool.slot_stride;
  const bool is_whole = octet > 0 && pool.page_stride % octet == 0;
  return is_whole && pool.page_stride / octet >= in_page ? pool.page_stride / octet : 0;
}

// Returns the bytes from a head to the next. With one head per page, the next head is in the next
// page. A shorter stride could give coordinates that exceed int32.
std::int64_t head_stride(const KvPool& pool) {
  if (pool.head_stride > 0) return pool.head_stride;
  return pool.page_stride > 0 ? pool.page_stride : kChunkBytes;
}

// Returns the page stride in heads, for a page stride that is not a whole number of octets.
std::int64_t heads_per_page(const KvPool& pool) {
  if (pool.page_stride % head_stride(pool) == 0) return pool.page_stride / head_stride(pool);
  throw SpecError(
      fmt::format("the pool's pages are {} bytes apart; on this GPU the distance must be a "
                  "multiple of 8 slots ({} bytes each) or of a head ({} bytes)",
                  pool.page_stride, pool.slot_stride, pool.head_stride));
}

// TMA cannot copy slots or heads that share memory, as those of an expanded tensor do.
void check_own_memory(const AttentionSpec& spec, const KvPool& pool, int page_size) {
  const bool share_heads = spec.num_kv_heads > 1 && pool.head_stride == 0;
  const bool share_slots = page_size > 1 && pool.slot_stride == 0;
  if (share_heads || share_slots)
    throw SpecError(fmt::format(
        "the pool's {} are 0 bytes apart; on this GPU each must have memory of its own: "
        "make k_pool and v_pool contiguous",
        share_heads ? "heads" : "slots"));
}

// TMA takes int32 coordinates.
void check_largest_coordinate(std::int64_t coordinate) {
  if (coordinate > std::numeric_limits<int32>::max())
    throw SpecError(
        "the pool's pages are too far apart for this GPU's copies: make k_pool and v_pool "
        "contiguous");
}

}  // namespace

PoolMaps encode_pool(const AttentionSpec& spec, const KvPool& pool, std::int64_t pages,
                     int page_size, int heads_per_tile, const Device& device) {
  if (pages == 0) return {};  // nothing is copied from an empty pool
  check_own_memory(spec, pool, page_size);
  const RowBoxes row = row_boxes(spec);
  const int panels = is_padded(spec.head_dim) ? 1 : heads_per_tile * spec.head_dim / row.columns;
  const std::int64_t octets = octets_per_page(pool, pages, page_size);
  const std::int64_t heads = octets > 0 ? 0 : heads_per_page(pool);
  const std::int64_t last_page = pages - 1;
  check_largest_coordinate(last_page * std::max(octets, heads) + page_size / kOctetSlots +
                           spec.num_kv_heads);
  const auto map = [&](void* data, int box_octets, int columns, Swizzle swizzle) {
    return device.encode(
        {.data = data,
         .type = row.type,
         .dims = {row.limit, kOctetSlots, panels, last_page * octets + page_size / kOctetSlots,
                  last_page * heads + spec.num_kv_heads},
         .strides = {pool.slot_stride, heads_per_tile == 1 ? row.bytes : head_stride(pool),
                     std::int64_t{kOctetSlots} * pool.slot_stride, head_stride(pool)},
         .box = {columns, kOctetSlots, panels, box_octets, 1},
         .swizzle = swizzle});
  };
  const auto maps = [&](void* data) {
    const TensorMap runs = map(data, 2, row.columns, row.swizzle);
    return is_padded(spec.head_dim)
               ? BoxMaps{runs, map(data, 2, last_key_panel_bytes() / kElementBytes,
                                   swizzle_of(last_key_panel_bytes()))}
               : BoxMaps{runs, map(data, 1, row.columns, row.swizzle)};
  };
  return {maps(pool.keys), maps(pool.values), static_cast<int32>(octets),
          static_cast<int32>(heads)};
}

PoolMaps PoolMapCache::get(const AttentionSpec& spec, const KvPool& pool, std::int64_t pages,
                           int page_size, int heads_per_tile, const Device& device) {
  auto& [mutex, entries] = cached_.get();
  const std::lock_guard lock(mutex);
  const Key key = {pool.keys, heads_per_tile};
  const auto found = entries.find(key);
  if (found != entries.end()) {
    const Entry& entry = found->second;
    if (same_memory(entry.pool, pool) && entry.pages == pages && entry.page_size == page_size &&
        entry.device == &device)
      return entry.maps;
  }
  const Entry entry = {pool, pages, page_size, &device,
                       encode_pool(spec, pool, pages, page_size, heads_per_tile, device)};
  if (entries.size() >= kMaxEntries) entries.clear();  // most of these pools no longer exist
  return entries.insert_or_assign(key, entry).first->second.maps;
}

}  // namespace lazyrope
