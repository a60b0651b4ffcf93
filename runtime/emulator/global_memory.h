#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/driver/device.h"
#include "runtime/emulator/clocks.h"
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
  // Bulk copies, of any number of bytes. Nobody may touch what one writes before it has landed, and
  // what one reads must have been shown by who has stored it.
  void check_bulk(const void* from, std::size_t bytes, const Site& site);
  void check_visible(const void* from, std::size_t bytes, const Site& site) const;
  void begin_bulk_write(void* to, std::size_t bytes, const Site& site);
  void land_bulk_write(void* to, const void* from, std::size_t bytes);
  void store(void* to, const void* from, std::size_t bytes, ThreadId by, const Site& site);
  // What the thread has stored, to bulk copies.
  void make_visible(ThreadId by) { ++fences_[number_of(by)]; }
  // The word of an atomic operation, which may be changed.
  std::uint32_t& word(std::uint32_t* p, const Site& site);
  const std::uint32_t& word(const std::uint32_t* p, const Site& site);

  // Whether the launch may write there.
  bool is_written(const void* p) const;

 private:
  struct Written {
    ThreadId by;
    std::uint32_t fences;  // that its thread had made
    Site site;
  };
  static constexpr ThreadId kNobody = {-1, -1};  // needs no proxy fence

  struct InFlight {
    std::uintptr_t begin;
    std::size_t bytes;
    Site site;
  };

  void check_landed(const void* p, std::size_t bytes, const Site& site) const;
  void note_written(const void* p, std::size_t bytes, ThreadId by, const Site& site);
  static std::uint64_t number_of(ThreadId id) {
    return static_cast<std::uint64_t>(id.cta) << 32 | static_cast<std::uint32_t>(id.thread);
  }
  std::uint32_t fences_of(ThreadId id) const;
  const MemoryRange& range_of(const void* p, std::size_t bytes, const Site& site);
  const MemoryRange& aligned_range(const void* p, std::size_t bytes, const Site& site);
  void check_range_writable(const void* p, std::size_t bytes, const Site& site);
  void check_writable(const void* p, std::size_t bytes, const Site& site);
  [[noreturn]] void refuse(const void* p, std::size_t bytes, const Site& site) const;

  std::vector<MemoryRange> ranges_;
  std::vector<InFlight> in_flight_;                            // bulk copies to these
  std::size_t latest_ = 0;                                     // where an access last fell
  std::unordered_map<std::uintptr_t, Written> words_written_;  // by this launch
  std::unordered_map<std::uint64_t, std::uint32_t> fences_;    // of threads that have made some
};

}  // namespace lazyrope
