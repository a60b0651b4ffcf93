#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "runtime/attention/pool.h"
#include "templates/abi/attend_tma.h"

namespace lazyrope {

// A pool as kernels of family sm90a take it: what `pool` is of `pages` pages of `page_size` slots.
// `heads`: that lie side by side in their tiles, each of which then has one panel.
PoolMaps encode_pool(const AttentionSpec& spec, const KvPool& pool, std::int64_t pages,
                     int page_size, int heads, const Device& device);

// The maps of pools that were used before, such as those of a model's layers: encoding them takes
// the driver a microsecond or two. Calls may come from several threads.
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
    const void* keys;  // where they lie
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
