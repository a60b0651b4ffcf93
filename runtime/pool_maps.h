#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/pool.h"
#include "templates/abi/attend_tma.h"

namespace lazyrope {

// A pool as kernels of family sm90a take it: what `pool` is of `pages` pages of `page_size` slots.
PoolMaps encode_pool(const AttentionSpec& spec, const KvPool& pool, std::int64_t pages,
                     int page_size, const Device& device);

// The maps of the pools that were used last, for encoding one takes the driver a while. Calls may
// come from several threads.
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
  std::vector<Entry> entries_;
  std::size_t oldest_ = 0;
};

}  // namespace lazyrope
