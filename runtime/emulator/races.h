#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/emulator/clocks.h"
#include "runtime/emulator/fault.h"

namespace lazyrope {

enum class AccessKind { kRead, kWrite, kAtomic };

// One access to a word, at the period `at` of its thread.
struct Access {
  AccessKind kind;
  ThreadId by;
  Clock at;
  Site site;
};

// The accesses to one word with which a later access may conflict.
class WordHistory {
 public:
  // Records the access. Returns an earlier one that conflicts with it and that no synchronization
  // orders before it.
  std::optional<Access> note(const Access& access, const ThreadClock& clock);

 private:
  std::vector<Access> accesses_;
};

// Finds data races (PTX ISA, "Memory Consistency Model"): two accesses to the same memory, one of
// them a write, that no barrier or other synchronization orders. A race throws a Violation.
//
// Each thread has a vector clock (clocks.h). Barriers, releases and acquires merge clocks, and each
// access is compared with the earlier ones of its word. A race is therefore found whichever of the
// two accesses ran first, and even if it did no harm.
class RaceDetector {
 public:
  RaceDetector(int threads, std::size_t shared_bytes)
      : threads_(threads), shared_words_(shared_bytes / 4) {}

  void begin(int cta);
  void end(int cta) { ctas_.erase(cta); }

  // Merges the clocks of threads that met at a barrier. `threads` are indices in the CTA.
  void meet(int cta, std::span<const int> threads);
  // Returns the id under which the bulk copies of one mbarrier have a clock of their own. Only
  // threads that wait for this mbarrier learn of these copies.
  ThreadId copies(int cta, int mbarrier) const {
    return {cta, threads_ + mbarrier % kMaxMbarriers};
  }

  // publish() returns a thread's clocks, and merge() merges clocks into them. Mbarriers and bulk
  // copies synchronize this way. acquire() and release() do the same through the atomic at `p`.
  VectorClock publish(ThreadId id) { return clock_of(id).publish(); }
  void merge(ThreadId id, const VectorClock& clock) { clock_of(id).merge(clock); }
  void acquire(ThreadId id, const void* p);
  void release(ThreadId id, const void* p);

  void shared(AccessKind kind, ThreadId id, std::uint32_t address, std::uint32_t bytes,
              const Site& site);
  void global(AccessKind kind, ThreadId id, const void* p, std::size_t bytes, const Site& site);

 private:
  static constexpr int kMaxMbarriers = 64;  // mbarriers of a CTA with distinct clocks

  struct Cta {
    std::vector<ThreadClock> clocks;
    std::vector<WordHistory> shared;
  };

  ThreadClock& clock_of(ThreadId id);
  std::string describe(ThreadId id) const;
  void note(WordHistory& word, const Access& access, std::string_view space,
            std::uintptr_t address);

  int threads_;
  std::size_t shared_words_;
  std::map<int, Cta> ctas_;
  std::unordered_map<std::uintptr_t, WordHistory> global_;
  std::unordered_map<const void*, VectorClock> published_;  // clocks of the releases, by address
};

}  // namespace lazyrope
