#include "runtime/emulator/clocks.h"

#include <algorithm>

namespace lazyrope {
namespace {

// Sets each clock to the later of the two.
void raise(VectorClock::Clocks& clocks, const VectorClock::Clocks& other) {
  std::ranges::transform(clocks, other, clocks.begin(),
                         [](Clock a, Clock b) { return std::max(a, b); });
}

}  // namespace

Clock VectorClock::of(ThreadId id) const {
  const auto it = clocks_.find(id.cta);
  return it == clocks_.end() ? 0 : (*it->second)[static_cast<std::size_t>(id.thread)];
}

void VectorClock::merge(int cta, std::shared_ptr<const Clocks> clocks) {
  std::shared_ptr<const Clocks>& known = clocks_[cta];
  if (known == clocks) return;
  if (known != nullptr) {
    auto both = std::make_shared<Clocks>(*known);
    raise(*both, *clocks);
    clocks = std::move(both);
  }
  known = std::move(clocks);
}

void VectorClock::merge(const VectorClock& other) {
  for (const auto& [cta, clocks] : other.clocks_) merge(cta, clocks);
}

ThreadClock::ThreadClock(ThreadId self, int threads)
    : self_(self), own_(static_cast<std::size_t>(threads), 0) {
  tick();
}

bool ThreadClock::has_seen(ThreadId id, Clock at) const {
  const Clock known =
      id.cta == self_.cta ? own_[static_cast<std::size_t>(id.thread)] : others_.of(id);
  return known >= at;
}

VectorClock ThreadClock::publish() {
  VectorClock published = others_;
  published.merge(self_.cta, std::make_shared<const VectorClock::Clocks>(own_));
  tick();
  return published;
}

void ThreadClock::merge(const VectorClock& clock) {
  for (const auto& [cta, clocks] : clock.ctas()) {
    if (cta == self_.cta)
      raise(own_, *clocks);
    else
      others_.merge(cta, clocks);
  }
}

void ThreadClock::meet(std::span<ThreadClock* const> threads) {
  VectorClock::Clocks own = threads.front()->own_;
  VectorClock others;
  for (const ThreadClock* thread : threads) {
    raise(own, thread->own_);
    others.merge(thread->others_);
  }
  for (ThreadClock* thread : threads) {
    thread->own_ = own;
    thread->others_ = others;
    thread->tick();
  }
}

}  // namespace lazyrope
