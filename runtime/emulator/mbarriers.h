#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/emulator/clocks.h"
#include "runtime/emulator/fault.h"

namespace lazyrope {

struct EmulatedThreadState;

// An mbarrier object (PTX ISA, "mbarrier"). A misuse throws a Violation: too many arrivals or
// bytes, or a phase that completes before a waiting thread has seen the previous one complete.
class Mbarrier {
 public:
  Mbarrier(std::uint32_t address, std::uint32_t count, const Site& site);

  // Count an arrival, expected bytes, and bytes that a copy has written. Each function returns true
  // if it completed the current phase.
  [[nodiscard]] bool arrive(const Site& site);
  [[nodiscard]] bool expect(std::uint32_t bytes, const Site& site);
  [[nodiscard]] bool receive(std::uint32_t bytes, const Site& site);

  // Returns true if the phase of this parity is complete: the current phase or the previous one.
  bool is_complete(std::uint32_t parity) const { return (phase_ & 1) != parity; }
  // Returns "the mbarrier at 64, of 3 arrivals, initialized at a.cuh:7 (phase 2: 1 arrivals and 128
  // bytes missing)".
  std::string describe() const;

  int owner = 0;             // the thread that initialized the mbarrier
  std::uint32_t fences = 0;  // init fences that this thread had made before
  int number = 0;            // index in its CTA
  // Threads that wait for the current phase.
  std::vector<EmulatedThreadState*> waiting;
  // Threads that the previous phase woke and that have not continued yet.
  std::vector<EmulatedThreadState*> woken;
  // The clocks published by arrivals of the current phase, and by those of all complete phases.
  VectorClock arriving;
  VectorClock complete;

 private:
  bool settle(const Site& site);
  void check_bytes(const Site& site) const;

  std::uint32_t address_;
  std::uint32_t count_;
  Site site_;
  std::uint32_t missing_;   // arrivals that the current phase still needs
  std::int64_t bytes_ = 0;  // bytes expected and not received
  std::uint64_t phase_ = 0;
};

// The mbarriers of a CTA, by shared memory address. A misaligned address and an address without an
// mbarrier throw a Violation.
class Mbarriers {
 public:
  static constexpr std::uint32_t kBytes = 8;

  Mbarrier& begin(std::uint32_t address, std::uint32_t count, const Site& site);
  void end(std::uint32_t address, const Site& site);
  Mbarrier& at(std::uint32_t address, const Site& site);

 private:
  std::map<std::uint32_t, Mbarrier> barriers_;
  int numbered_ = 0;
};

}  // namespace lazyrope
