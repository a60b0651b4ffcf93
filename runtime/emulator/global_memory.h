#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "runtime/device.h"
#include "runtime/emulator/fault.h"

namespace lazyrope {

// What a launch may reach of the host's memory, and what it has written there. What breaks a rule
// throws a Violation.
class GlobalMemory {
 public:
  explicit GlobalMemory(std::vector<MemoryRange> ranges) : ranges_(std::move(ranges)) {}

  void load(EmulatedLoad kind, void* to, const void* from, std::size_t bytes, const Site& site);
  // An asynchronous copy of the first `bytes` of `size`, which is a power of two.
  void check_copy(const void* from, std::size_t size, std::size_t bytes, const Site& site);
  // Bulk copies, of any number of bytes. Nobody may touch what one writes before it has landed.
  void check_bulk(const void* from, std::size_t bytes, const Site& site);
  void begin_bulk_write(void* to, std::size_t bytes, const Site& site);
  void land_bulk_write(void* to, const void* from, std::size_t bytes);
  void store(void* to, const void* from, std::size_t bytes, const Site& site);
  // The word of an atomic operation, which may be changed.
  std::uint32_t& word(std::uint32_t* p, const Site& site);
  const std::uint32_t& word(const std::uint32_t* p, const Site& site);

  // Whether the launch may write there.
  bool is_written(const void* p) const;

 private:
  struct InFlight {
    std::uintptr_t begin;
    std::size_t bytes;
    Site site;
  };

  void check_landed(const void* p, std::size_t bytes, const Site& site) const;
  void note_written(const void* p, std::size_t bytes);
  const MemoryRange& range_of(const void* p, std::size_t bytes, const Site& site);
  const MemoryRange& aligned_range(const void* p, std::size_t bytes, const Site& site);
  void check_range_writable(const void* p, std::size_t bytes, const Site& site);
  void check_writable(const void* p, std::size_t bytes, const Site& site);
  [[noreturn]] void refuse(const void* p, std::size_t bytes, const Site& site) const;

  std::vector<MemoryRange> ranges_;
  std::vector<InFlight> in_flight_;                   // bulk copies to these
  std::size_t latest_ = 0;                            // where an access last fell
  std::unordered_set<std::uintptr_t> words_written_;  // by this launch
};

}  // namespace lazyrope
