#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/emulator/fault.h"

namespace lazyrope {

// The shared memory of a CTA, and the state of each of its words. An access that breaks a rule
// throws a Violation. One host thread runs a launch, so there is no lock.
//
// A word is uninitialized, valid, in flight (the destination of a copy; its bytes are poison) or
// part of an mbarrier. It also counts the asynchronous reads that have not ended. It remembers the
// thread that stored it last, and the number of proxy fences that this thread had made. If a bulk
// copy or wgmma reads the word and this number is still the same, the proxy fence is missing.
class SharedMemory {
 public:
  static constexpr std::uint32_t kWordBytes = 4;

  SharedMemory(std::size_t bytes, int threads);

  // Checks bounds and alignment of an access of `bytes` bytes, a power of two.
  void check_access(std::uint32_t address, std::uint32_t bytes, const Site& site) const;

  void load(void* to, std::uint32_t from, std::uint32_t bytes, const Site& site) const;
  void store(std::uint32_t to, const void* from, std::uint32_t bytes, const Site& site, int thread);

  // begin_copy() begins a cp.async to these bytes. Any access to them faults until land_copy().
  void begin_copy(std::uint32_t to, std::uint32_t bytes, const Site& site);
  void land_copy(std::uint32_t to, const void* from, std::uint32_t bytes, int thread);

  // The asynchronous proxy executes bulk copies and wgmma. It sees the stores of a thread only
  // after that thread's proxy fence.
  void fence_proxy(int thread) { ++fences_[static_cast<std::size_t>(thread)]; }
  void begin_bulk_write(std::uint32_t to, std::uint32_t bytes, const Site& site);
  void land_bulk_write(std::uint32_t to, const void* from, std::uint32_t bytes);
  // begin_bulk_read() begins an asynchronous read. Any write to these bytes faults until
  // end_bulk_read().
  void begin_bulk_read(std::uint32_t from, std::uint32_t bytes, const Site& site);
  void end_bulk_read(std::uint32_t from, std::uint32_t bytes);
  const std::byte* data(std::uint32_t address) const { return bytes_.data() + address; }

  // begin_barrier() makes these bytes an mbarrier object. Only mbarrier instructions may access it
  // until end_barrier().
  void begin_barrier(std::uint32_t address, std::uint32_t bytes, const Site& site);
  void end_barrier(std::uint32_t address, std::uint32_t bytes);

 private:
  enum class State : std::uint8_t { kUninitialized, kValid, kInFlight, kBarrier };
  static constexpr int kNobody = -1;

  // The state of a word, its latest writer, and its asynchronous readers.
  struct Word {
    State state = State::kUninitialized;
    std::uint16_t reads = 0;   // asynchronous reads that have not ended
    int thread = kNobody;      // the thread whose proxy fence the word needs
    std::uint32_t fences = 0;  // proxy fences that this thread had made before its store
    Site site = {};
    Site read = {};  // the latest asynchronous read
  };

  std::span<Word> words(std::uint32_t address, std::uint32_t bytes);
  std::span<const Word> words(std::uint32_t address, std::uint32_t bytes) const;
  std::size_t address_of(const Word& word) const;
  Word stored(State state, const Site& site, int thread) const;

  void poison(std::uint32_t to, std::uint32_t bytes, const Site& site);

  // Each function throws if the state of the words forbids this kind of access.
  void check_bounds(std::uint32_t address, std::uint32_t bytes, const Site& site) const;
  void check_landed(std::uint32_t address, std::uint32_t bytes, const char* access,
                    const Site& site) const;
  void check_initialized(std::uint32_t address, std::uint32_t bytes, const Site& site) const;
  void check_unread(std::uint32_t address, std::uint32_t bytes, const char* access,
                    const Site& site) const;
  void check_fenced(std::uint32_t address, std::uint32_t bytes, const Site& site) const;

  std::vector<std::byte> bytes_;
  std::vector<Word> words_;
  std::vector<std::uint32_t> fences_;  // proxy fences made, by thread
};

}  // namespace lazyrope
