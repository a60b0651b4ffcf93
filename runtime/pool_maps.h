#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "runtime/pool.h"
#include "templates/abi/attend_tma.h"

namespace lazyrope {

// A pool as kernels of family sm90a take it: what `pool` is of `pages` pages of `page_size` slots.
PoolMaps encode_pool(const AttentionSpec& spec, const KvPool& pool, std::int64_t pages,
                     int page_size, const Device& device);

// The maps of pools that were used before, such as those of a model's layers: encoding them takes
// the driver a microsecond or two. Calls may come from several threads.
class PoolMapCache {
 public:
  PoolMaps get(const AttentionSpec& spec, const KvPool& pool, std::int64_t pages, int page_size,
               const Device& device);

 private:
  struct Entry {
    KvPool pool;
    std::int64_t pages;
    int page_size;
    const Device* device;
    PoolMaps maps;
  };

  std::mutex mutex_;
  std::unordered_map<const void*, Entry> entries_;  // by where keys lie
};

}  // namespace lazyrope
