#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace lazyrope {

// Vector clocks (Fidge 1988, Mattern 1989): how much of each thread's past another knows of.

using Clock = std::uint32_t;

struct ThreadId {
  int cta;
  int thread;
  friend bool operator==(const ThreadId&, const ThreadId&) = default;
};

// What is published by a release, and known after the acquire that reads it: clocks of the threads
// of some CTAs.
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

// A thread's clock, and what it knows of others: exactly of its own CTA, by what was published of
// other CTAs.
class ThreadClock {
 public:
  ThreadClock(ThreadId self, int threads);

  ThreadId self() const { return self_; }
  Clock now() const { return own_[static_cast<std::size_t>(self_.thread)]; }
  // Whether what `id` did at time `at` comes before what this thread does now.
  bool has_seen(ThreadId id, Clock at) const;

  VectorClock publish();  // and begins the next period of this thread
  void merge(const VectorClock& clock);

  // Merges the clocks of all threads, as at a barrier.
  static void meet(std::span<ThreadClock* const> threads);

 private:
  void tick() { ++own_[static_cast<std::size_t>(self_.thread)]; }

  ThreadId self_;
  VectorClock::Clocks own_;  // of the threads of its CTA
  VectorClock others_;
};

}  // namespace lazyrope
