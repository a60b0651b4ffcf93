#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/emulator/fault.h"

namespace lazyrope {

// The shared memory of a CTA, and what is known of each of its words. What breaks a rule throws a
// Violation.
class SharedMemory {
 public:
  static constexpr std::uint32_t kWordBytes = 4;

  SharedMemory(std::size_t bytes, int threads);

  // Bounds and alignment of an access of that many bytes.
  void check_access(std::uint32_t address, std::uint32_t bytes, const Site& site) const;

  void load(void* to, std::uint32_t from, std::uint32_t bytes, const Site& site) const;
  void store(std::uint32_t to, const void* from, std::uint32_t bytes, const Site& site, int thread);

  // A copy of cp.async to these bytes, which nobody may touch before it has landed.
  void begin_copy(std::uint32_t to, std::uint32_t bytes, const Site& site);
  void land_copy(std::uint32_t to, const void* from, std::uint32_t bytes, int thread);

  // The asynchronous proxy, of bulk copies and wgmma: it sees what a thread has stored only after
  // that thread's proxy fence.
  void fence_proxy(int thread) { ++fences_[static_cast<std::size_t>(thread)]; }
  void begin_bulk_write(std::uint32_t to, std::uint32_t bytes, const Site& site);
  void land_bulk_write(std::uint32_t to, const void* from, std::uint32_t bytes);
  // What nobody may write before the read has ended.
  void begin_bulk_read(std::uint32_t from, std::uint32_t bytes, const Site& site);
  void end_bulk_read(std::uint32_t from, std::uint32_t bytes);
  const std::byte* data(std::uint32_t address) const { return bytes_.data() + address; }

  // An mbarrier object, which only its own instructions may touch.
  void begin_barrier(std::uint32_t address, std::uint32_t bytes, const Site& site);
  void end_barrier(std::uint32_t address, std::uint32_t bytes);

 private:
  enum class State : std::uint8_t { kUninitialized, kValid, kInFlight, kBarrier };
  static constexpr int kNobody = -1;

  // A word, who last stored or copied to it, and who reads it asynchronously.
  struct Word {
    State state = State::kUninitialized;
    std::uint16_t reads = 0;
    int thread = kNobody;      // whose proxy fence it needs
    std::uint32_t fences = 0;  // that that thread had made before
    Site site = {};
    Site read = {};  // the latest
  };

  std::span<Word> words(std::uint32_t address, std::uint32_t bytes);
  std::span<const Word> words(std::uint32_t address, std::uint32_t bytes) const;
  std::size_t address_of(const Word& word) const;
  Word stored(State state, const Site& site, int thread) const;

  void poison(std::uint32_t to, std::uint32_t bytes, const Site& site);

  // Each throws where an access of that kind may not be made.
  void check_bounds(std::uint32_t address, std::uint32_t bytes, const Site& site) const;
  void check_landed(std::uint32_t address, std::uint32_t bytes, const char* access,
                    const Site& site) const;
  void check_initialized(std::uint32_t address, std::uint32_t bytes, const Site& site) const;
  void check_unread(std::uint32_t address, std::uint32_t bytes, const char* access,
                    const Site& site) const;
  void check_fenced(std::uint32_t address, std::uint32_t bytes, const Site& site) const;

  std::vector<std::byte> bytes_;
  std::vector<Word> words_;
  std::vector<std::uint32_t> fences_;  // of the asynchronous proxy, by thread
};

}  // namespace lazyrope
