#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/emulator/fault.h"

namespace lazyrope {

// The shared memory of a CTA, and what is known of each of its words. What breaks a rule throws a
// Violation.
class SharedMemory {
 public:
  static constexpr std::uint32_t kWordBytes = 4;

  explicit SharedMemory(std::size_t bytes);

  // Bounds and alignment of an access of that many bytes.
  void check_place(std::uint32_t address, std::uint32_t bytes, const Site& site) const;

  void load(void* to, std::uint32_t from, std::uint32_t bytes, const Site& site) const;
  void store(std::uint32_t to, const void* from, std::uint32_t bytes, const Site& site);

  // An asynchronous copy to these bytes, which nobody may touch before it has landed.
  void begin_copy(std::uint32_t to, std::uint32_t bytes, const Site& site);
  void land_copy(std::uint32_t to, const void* from, std::uint32_t bytes);

 private:
  enum class State : std::uint8_t { kUninitialized, kValid, kInFlight };

  // A word, and who last stored or copied to it.
  struct Word {
    State state = State::kUninitialized;
    Site site = {};
  };

  void check_landed(std::uint32_t address, std::uint32_t bytes, const char* access,
                    const Site& site) const;
  [[noreturn]] void refuse_in_flight(std::size_t word, const char* access, const Site& site) const;
  void mark(std::uint32_t address, std::uint32_t bytes, Word word);

  std::vector<std::byte> bytes_;
  std::vector<Word> words_;
};

}  // namespace lazyrope
