#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "runtime/driver/device.h"
#include "runtime/emulator/clocks.h"
#include "runtime/emulator/fault.h"

namespace lazyrope {

// The host memory that a launch may access, with the state that the rules need. An access that
// breaks a rule throws a Violation. One host thread runs a launch, so there is no lock.
//
// Each access must fall into one range, and a store into a range that may be written. A
// non-coherent load may not read what this launch has written. Two more rules concern bulk copies.
// No access may touch the destination of a bulk copy in flight. Before a bulk copy reads what a
// thread has stored, that thread must execute fence.proxy.async.global.
class GlobalMemory {
 public:
  explicit GlobalMemory(std::vector<MemoryRange> ranges) : ranges_(std::move(ranges)) {}

  void load(EmulatedLoad kind, void* to, const void* from, std::size_t bytes, const Site& site);
  // Checks a cp.async that reads the first `bytes` of `size` bytes; `size` is a power of two.
  void check_copy(const void* from, std::size_t size, std::size_t bytes, const Site& site);
  // Bulk copies have any number of bytes. check_bulk() checks bounds and copies in flight.
  // check_visible() checks that each store to the source was followed by its thread's proxy fence.
  // begin_bulk_write() forbids all accesses to the destination until land_bulk_write().
  void check_bulk(const void* from, std::size_t bytes, const Site& site);
  void check_visible(const void* from, std::size_t bytes, const Site& site) const;
  void begin_bulk_write(void* to, std::size_t bytes, const Site& site);
  void land_bulk_write(void* to, const void* from, std::size_t bytes);
  void store(void* to, const void* from, std::size_t bytes, ThreadId by, const Site& site);
  // Makes all that the thread has stored so far visible to bulk copies.
  void make_visible(ThreadId by) { ++fences_[number_of(by)]; }
  // Returns the word of an atomic operation, which may change it. The const overload is for loads.
  std::uint32_t& word(std::uint32_t* p, const Site& site);
  const std::uint32_t& word(const std::uint32_t* p, const Site& site);

  // Returns true if the launch may write there.
  bool is_written(const void* p) const;

 private:
  // The latest store to a word.
  struct Written {
    ThreadId by;
    std::uint32_t fences;  // proxy fences that its thread had made before
    Site site;
  };
  static constexpr ThreadId kNobody = {-1, -1};  // the writer of words that need no proxy fence

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
  std::vector<InFlight> in_flight_;  // destinations of bulk copies
  std::size_t latest_ = 0;           // range of the latest access; the next search starts with it
  // words that this launch has written, by address
  std::unordered_map<std::uintptr_t, Written> words_written_;
  std::unordered_map<std::uint64_t, std::uint32_t> fences_;  // proxy fences made, by thread
};

}  // namespace lazyrope
