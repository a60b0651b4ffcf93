#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/emulator/clocks.h"
#include "runtime/emulator/fault.h"

namespace lazyrope {

struct EmulatedThreadState;

// An mbarrier object (PTX ISA, "mbarrier"). What breaks a rule throws a Violation.
class Mbarrier {
 public:
  Mbarrier(std::uint32_t address, std::uint32_t count, const Site& site);

  // Each may complete the open phase, and returns whether it has.
  [[nodiscard]] bool arrive(const Site& site);
  [[nodiscard]] bool expect(std::uint32_t bytes, const Site& site);
  [[nodiscard]] bool receive(std::uint32_t bytes, const Site& site);

  // Whether the phase of that parity, the open one or that before it, is complete.
  bool is_complete(std::uint32_t parity) const { return (phase_ & 1) != parity; }
  // "the mbarrier at 64, of 3 arrivals, initialized at a.cuh:7 (phase 2: 1 arrival and 128 bytes
  // missing)"
  std::string describe() const;

  // The thread that has initialized it, and how often it had shown its mbarriers before.
  int owner = 0;
  std::uint32_t fences = 0;
  int number = 0;  // in its CTA
  // Of the open phase.
  std::vector<EmulatedThreadState*> waiting;
  // That the phase before has woken, and that have not seen it yet.
  std::vector<EmulatedThreadState*> woken;
  // What arrivals of the open phase have published, and all those before it.
  VectorClock arriving;
  VectorClock complete;

 private:
  bool settle(const Site& site);
  void check_bytes(const Site& site) const;

  std::uint32_t address_;
  std::uint32_t count_;
  Site site_;
  std::uint32_t missing_;   // arrivals
  std::int64_t bytes_ = 0;  // expected and not received
  std::uint64_t phase_ = 0;
};

// Those of a CTA.
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
