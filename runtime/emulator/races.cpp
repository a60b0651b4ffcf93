#include "runtime/emulator/races.h"

#include <fmt/format.h>

#include <algorithm>

namespace lazyrope {
namespace {

// The smallest accesses that an instruction of the templates makes, in bytes.
constexpr std::uint32_t kSharedGranule = 4;
constexpr std::uintptr_t kGlobalGranule = 1;

bool conflict(AccessKind a, AccessKind b) { return a != b || a == AccessKind::kWrite; }

const char* name(AccessKind kind) {
  switch (kind) {
    case AccessKind::kRead:
      return "read";
    case AccessKind::kWrite:
      return "write";
    case AccessKind::kAtomic:
      return "atomic access";
  }
  return "";
}

}  // namespace

std::optional<Access> WordHistory::note(const Access& access, const ThreadClock& clock) {
  std::optional<Access> unordered;
  // An earlier access is dropped if this one is ordered after it and conflicts with all accesses
  // that the earlier one conflicts with.
  std::erase_if(accesses_, [&](const Access& before) {
    const bool is_ordered = clock.has_seen(before.by, before.at);
    if (!is_ordered && conflict(before.kind, access.kind)) unordered = before;
    return is_ordered && (access.kind == AccessKind::kWrite || access.kind == before.kind);
  });
  accesses_.push_back(access);
  return unordered;
}

void RaceDetector::begin(int cta) {
  Cta& begun = ctas_[cta];
  const int all = threads_ + kMaxMbarriers;
  for (int thread = 0; thread < all; ++thread)
    begun.clocks.emplace_back(ThreadId{cta, thread}, all);
  begun.shared.resize(shared_words_);
}

ThreadClock& RaceDetector::clock_of(ThreadId id) {
  return ctas_.at(id.cta).clocks[static_cast<std::size_t>(id.thread)];
}

void RaceDetector::meet(int cta, std::span<const int> threads) {
  std::vector<ThreadClock*> clocks;
  for (const int thread : threads) clocks.push_back(&clock_of({cta, thread}));
  ThreadClock::meet(clocks);
}

void RaceDetector::acquire(ThreadId id, const void* p) {
  if (const auto it = published_.find(p); it != published_.end()) clock_of(id).merge(it->second);
}

void RaceDetector::release(ThreadId id, const void* p) {
  published_[p].merge(clock_of(id).publish());
}

std::string RaceDetector::describe(ThreadId id) const {
  if (id.thread < threads_) return fmt::format("block {}, thread {}", id.cta, id.thread);
  return fmt::format("a bulk copy of block {}", id.cta);
}

// Throws if the access races with an earlier one.
void RaceDetector::note(WordHistory& word, const Access& access, std::string_view space,
                        std::uintptr_t address) {
  const std::optional<Access> other = word.note(access, clock_of(access.by));
  if (!other) return;
  throw Violation{
      rule::kRace, access.site,
      fmt::format("this {} at {:#x} of {} memory and the {} at {} by {} are not ordered by a "
                  "barrier or other synchronization",
                  name(access.kind), address, space, name(other->kind),
                  lazyrope::describe(other->site), describe(other->by))};
}

void RaceDetector::shared(AccessKind kind, ThreadId id, std::uint32_t address, std::uint32_t bytes,
                          const Site& site) {
  const Access access = {kind, id, clock_of(id).now(), site};
  std::vector<WordHistory>& words = ctas_.at(id.cta).shared;
  for (std::uint32_t at = address; at < address + bytes; at += kSharedGranule)
    note(words[at / kSharedGranule], access, "shared", at);
}

void RaceDetector::global(AccessKind kind, ThreadId id, const void* p, std::size_t bytes,
                          const Site& site) {
  const Access access = {kind, id, clock_of(id).now(), site};
  const auto begin = reinterpret_cast<std::uintptr_t>(p);
  for (std::uintptr_t at = begin; at < begin + bytes; at += kGlobalGranule)
    note(global_[at / kGlobalGranule], access, "global", at);
}

}  // namespace lazyrope
