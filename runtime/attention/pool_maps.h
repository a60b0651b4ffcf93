#pragma once

#include <cstdint>
#include <unordered_map>

#include "runtime/attention/pool.h"
#include "runtime/base/fork.h"
#include "templates/abi/attend_tma.h"

namespace lazyrope {

// Returns the tensor maps with which kernels of family sm90a copy from the pool, which has `pages`
// pages of `page_size` slots. A kernel's tile holds `heads_per_tile` KV heads side by side; with
// more than one, each head has one panel. Throws SpecError if the pool's strides do not fit a map.
PoolMaps encode_pool(const AttentionSpec& spec, const KvPool& pool, std::int64_t pages,
                     int page_size, int heads_per_tile, const Device& device);

// Caches the maps of pools, such as those of a model's layers, because the driver takes a
// microsecond or two to encode them. Thread-safe.
class PoolMapCache {
 public:
  PoolMaps get(const AttentionSpec& spec, const KvPool& pool, std::int64_t pages, int page_size,
               int heads_per_tile, const Device& device);

 private:
  struct Entry {
    KvPool pool;
    std::int64_t pages;
    int page_size;
    const Device* device;
    PoolMaps maps;
  };
  struct Key {
    const void* keys;  // address of the pool's keys
    int heads_per_tile;
    bool operator==(const Key&) const = default;
  };
  struct HashOfKey {
    std::size_t operator()(const Key& key) const {
      return std::hash<const void*>()(key.keys) ^ static_cast<std::size_t>(key.heads_per_tile);
    }
  };

  struct Cached {
    std::mutex mutex;
    std::unordered_map<Key, Entry, HashOfKey> entries;
  };

  PerProcess<Cached> cached_;
};

}  // namespace lazyrope
