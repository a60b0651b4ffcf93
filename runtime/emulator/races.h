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

struct Access {
  AccessKind kind;
  ThreadId by;
  Clock at;
  Site site;
};

// The accesses to a word that a later one may conflict with.
class WordHistory {
 public:
  // Notes the access; returns one that conflicts with it and that its thread does not know of.
  std::optional<Access> note(const Access& access, const ThreadClock& clock);

 private:
  std::vector<Access> accesses_;
};

// Finds accesses to the same word, one of them a write, that no barrier or other synchronization
// orders (PTX ISA, "Memory Consistency Model": data races). What is found throws a Violation.
class RaceDetector {
 public:
  RaceDetector(int threads, std::size_t shared_bytes)
      : threads_(threads), shared_words_(shared_bytes / 4) {}

  void begin(int cta);
  void end(int cta) { ctas_.erase(cta); }

  // All threads, as numbered in the CTA, have come to a barrier.
  void meet(int cta, std::span<const int> threads);
  // Bulk copies that an mbarrier of the CTA tells of: as a thread of their own, from whom only
  // those learn who wait for that mbarrier.
  ThreadId copies(int cta, int mbarrier) const {
    return {cta, threads_ + mbarrier % kMaxMbarriers};
  }

  // What the thread knows, and what it learns, by other ways than barriers of all and atomics.
  VectorClock publish(ThreadId id) { return clock_of(id).publish(); }
  void merge(ThreadId id, const VectorClock& clock) { clock_of(id).merge(clock); }
  void acquire(ThreadId id, const void* p);
  void release(ThreadId id, const void* p);

  void shared(AccessKind kind, ThreadId id, std::uint32_t address, std::uint32_t bytes,
              const Site& site);
  void global(AccessKind kind, ThreadId id, const void* p, std::size_t bytes, const Site& site);

 private:
  static constexpr int kMaxMbarriers = 64;  // that are told apart

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
  std::unordered_map<const void*, VectorClock> published_;  // by atomics
};

}  // namespace lazyrope
