#include "runtime/emulator/clocks.h"

#include <algorithm>

namespace lazyrope {
namespace {

// The later of each pair.
void raise(Knowledge::Clocks& clocks, const Knowledge::Clocks& other) {
  std::ranges::transform(clocks, other, clocks.begin(),
                         [](Clock a, Clock b) { return std::max(a, b); });
}

}  // namespace

Clock Knowledge::of(ThreadId id) const {
  const auto it = clocks_.find(id.cta);
  return it == clocks_.end() ? 0 : (*it->second)[static_cast<std::size_t>(id.thread)];
}

void Knowledge::learn(int cta, std::shared_ptr<const Clocks> clocks) {
  std::shared_ptr<const Clocks>& known = clocks_[cta];
  if (known == clocks) return;
  if (known != nullptr) {
    auto both = std::make_shared<Clocks>(*known);
    raise(*both, *clocks);
    clocks = std::move(both);
  }
  known = std::move(clocks);
}

void Knowledge::learn(const Knowledge& other) {
  for (const auto& [cta, clocks] : other.clocks_) learn(cta, clocks);
}

ThreadClock::ThreadClock(ThreadId self, int threads)
    : self_(self), own_(static_cast<std::size_t>(threads), 0) {
  tick();
}

bool ThreadClock::knows(ThreadId id, Clock at) const {
  const Clock known =
      id.cta == self_.cta ? own_[static_cast<std::size_t>(id.thread)] : others_.of(id);
  return known >= at;
}

Knowledge ThreadClock::publish() {
  Knowledge published = others_;
  published.learn(self_.cta, std::make_shared<const Knowledge::Clocks>(own_));
  tick();
  return published;
}

void ThreadClock::learn(const Knowledge& knowledge) {
  for (const auto& [cta, clocks] : knowledge.ctas()) {
    if (cta == self_.cta)
      raise(own_, *clocks);
    else
      others_.learn(cta, clocks);
  }
}

void ThreadClock::meet(std::span<ThreadClock* const> threads) {
  Knowledge::Clocks own = threads.front()->own_;
  Knowledge others;
  for (const ThreadClock* thread : threads) {
    raise(own, thread->own_);
    others.learn(thread->others_);
  }
  for (ThreadClock* thread : threads) {
    thread->own_ = own;
    thread->others_ = others;
    thread->tick();
  }
}

}  // namespace lazyrope
