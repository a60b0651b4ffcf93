#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "runtime/attention/pool.h"
#include "templates/abi/attend_tma.h"

namespace lazyrope {

// Returns the tensor maps with which kernels of family sm90a copy from the pool. `pages` and
// `page_size` are those of the pool. `heads` KV heads are side by side in a kernel's tiles; with
// more than one, each head has one panel. Throws SpecError if the pool's strides do not fit a map.
PoolMaps encode_pool(const AttentionSpec& spec, const KvPool& pool, std::int64_t pages,
                     int page_size, int heads, const Device& device);

// Caches the maps of pools, such as those of a model's layers, because the driver takes a
// microsecond or two to encode them. Thread-safe.
class PoolMapCache {
 public:
  PoolMaps get(const AttentionSpec& spec, const KvPool& pool, std::int64_t pages, int page_size,
               int heads, const Device& device);

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
    int heads;
    bool operator==(const Key&) const = default;
  };
  struct HashOfKey {
    std::size_t operator()(const Key& key) const {
      return std::hash<const void*>()(key.keys) ^ static_cast<std::size_t>(key.heads);
    }
  };

  std::mutex mutex_;
  std::unordered_map<Key, Entry, HashOfKey> entries_;
};

}  // namespace lazyrope
