#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace lazyrope {

// Vector clocks (Fidge 1988, Mattern 1989). A thread counts its periods, and each of its releases
// and barriers begins the next one. A Clock is the number of a period, from 1 on. A thread knows
// its own current period, and for every other thread the latest period that synchronization has
// ordered before its own next access (0: none).

using Clock = std::uint32_t;

struct ThreadId {
  int cta;
  int thread;
  friend bool operator==(const ThreadId&, const ThreadId&) = default;
};

// The clocks of all threads of some CTAs: what a release publishes, what several releases have
// published together, or what a thread knows of other CTAs.
class VectorClock {
 public:
  using Clocks = std::vector<Clock>;

  Clock of(ThreadId id) const;
  void merge(int cta, std::shared_ptr<const Clocks> clocks);
  void merge(const VectorClock& other);
  const std::map<int, std::shared_ptr<const Clocks>>& ctas() const { return clocks_; }

 private:
  std::map<int, std::shared_ptr<const Clocks>> clocks_;
};

// The vector clock of one thread. It holds a clock for each thread of its own CTA, and for other
// CTAs the clocks that it has acquired.
class ThreadClock {
 public:
  ThreadClock(ThreadId self, int threads);

  ThreadId self() const { return self_; }
  Clock now() const { return own_[static_cast<std::size_t>(self_.thread)]; }
  // Returns true if the period `at` of thread `id` is ordered before this thread's next access.
  bool has_seen(ThreadId id, Clock at) const;

  // Returns a copy of this thread's clocks and begins its next period.
  VectorClock publish();
  void merge(const VectorClock& clock);

  // Merges the clocks of all these threads, as a barrier does. All belong to one CTA.
  static void meet(std::span<ThreadClock* const> threads);

 private:
  void tick() { ++own_[static_cast<std::size_t>(self_.thread)]; }

  ThreadId self_;
  VectorClock::Clocks own_;  // the clocks of the threads of its own CTA, by thread index
  VectorClock others_;
};

}  // namespace lazyrope
