#include "runtime/emulator/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/fork.h"
#include "runtime/base/interruption.h"
#include "runtime/emulator/matrix.h"

namespace lazyrope {
namespace {

constexpr std::uint32_t kRowBytes = 16;  // bytes of a row of an ldmatrix matrix

struct LdmatrixLane {
  std::uint32_t row;
  std::uint32_t* registers;
};

struct ShuffleLane {
  std::uint64_t given;
  int source;
  std::uint64_t received;
};

struct VoteLane {
  bool given;
  std::uint32_t received;
};

// Returns the lane from which a shuffle takes its value (PTX ISA, "shfl.sync").
int shuffle_source(EmulatedShuffle kind, int lane, int operand) {
  switch (kind) {
    case EmulatedShuffle::kIdx:
      return operand & (kEmulatedWarp - 1);
    case EmulatedShuffle::kBfly:
      return lane ^ (operand & (kEmulatedWarp - 1));
    case EmulatedShuffle::kUp:
      return lane < operand ? lane : lane - operand;
  }
  return lane;
}

const char* shuffle_name(EmulatedShuffle kind) {
  switch (kind) {
    case EmulatedShuffle::kIdx:
      return "shfl.sync.idx";
    case EmulatedShuffle::kBfly:
      return "shfl.sync.bfly";
    case EmulatedShuffle::kUp:
      return "shfl.sync.up";
  }
  return "";
}

std::uint32_t applied(EmulatedAtomic operation, std::uint32_t before, std::uint32_t operand) {
  switch (operation) {
    case EmulatedAtomic::kInc:
      return before >= operand ? 0 : before + 1;
    case EmulatedAtomic::kAdd:
      return before + operand;
    case EmulatedAtomic::kExch:
      return operand;
  }
  return before;
}

bool acquires(EmulatedOrder order) {
  return order == EmulatedOrder::kAcquire || order == EmulatedOrder::kAcquireRelease;
}

bool releases(EmulatedOrder order) {
  return order == EmulatedOrder::kRelease || order == EmulatedOrder::kAcquireRelease;
}

MemoryInstruction instruction_of(EmulatedLoad kind) {
  return kind == EmulatedLoad::kNonCoherent ? MemoryInstruction::kLdGlobalNc
                                            : MemoryInstruction::kLdGlobal;
}

// Locks the mutex. The wait can be interrupted. Under Python it also lets other threads have the
// interpreter's lock, which the thread that holds the mutex needs for its own interruption check.
std::unique_lock<ForkMutex> lock_interruptibly(ForkMutex& mutex) {
  constexpr std::chrono::milliseconds kPause{1};
  std::unique_lock lock(mutex, std::try_to_lock);
  for (; !lock.owns_lock(); (void)lock.try_lock()) {
    check_interruption();
    std::this_thread::sleep_for(kPause);
  }
  return lock;
}

// Sets a flag while it lives.
class Running {
 public:
  explicit Running(bool& flag) : flag_(flag) { flag_ = true; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() { flag_ = false; }

 private:
  bool& flag_;
};

}  // namespace

void Machine::ld_shared(void* to, uint32 from, int32 bytes, Site site) {
  shared().load(to, from, static_cast<std::uint32_t>(bytes), site);
  note_shared(AccessKind::kRead, running(), from, static_cast<std::uint32_t>(bytes), site);
  profile(running(), {MemoryInstruction::kLdShared, site, range(from, bytes)});
}

void Machine::st_shared(uint32 to, const void* from, int32 bytes, Site site) {
  shared().store(to, from, static_cast<std::uint32_t>(bytes), site, running().kernel_view.thread);
  note_shared(AccessKind::kWrite, running(), to, static_cast<std::uint32_t>(bytes), site);
  profile(running(), {MemoryInstruction::kStShared, site, range(to, bytes)});
}

void Machine::ld_global(EmulatedLoad kind, void* to, const void* from, int32 bytes, Site site) {
  const bool is_relaxed = kind == EmulatedLoad::kRelaxed;
  if (is_relaxed) yield(Wait{"ld.relaxed", site});
  global_.load(kind, to, from, static_cast<std::size_t>(bytes), site);
  note_global(is_relaxed ? AccessKind::kAtomic : AccessKind::kRead, from,
              static_cast<std::size_t>(bytes), site);
  profile(running(), {instruction_of(kind), site, {}, range(from, bytes)});
}

void Machine::st_global(void* to, const void* from, int32 bytes, Site site) {
  global_.store(to, from, static_cast<std::size_t>(bytes), id_of(running()), site);
  note_global(AccessKind::kWrite, to, static_cast<std::size_t>(bytes), site);
  profile(running(), {MemoryInstruction::kStGlobal, site, {}, range(to, bytes)});
}

void Machine::st_relaxed(void* to, const void* from, int32 bytes, Site site) {
  yield({});
  global_.store(to, from, static_cast<std::size_t>(bytes), id_of(running()), site);
  note_global(AccessKind::kAtomic, to, static_cast<std::size_t>(bytes), site);
  profile(running(), {MemoryInstruction::kStGlobal, site, {}, range(to, bytes)});
}

uint32 Machine::atom(EmulatedAtomic operation, EmulatedOrder order, uint32* p, uint32 operand,
                     Site site) {
  yield({});
  std::uint32_t& word = global_.word(p, site);
  note_global(AccessKind::kAtomic, p, sizeof *p, site);
  profile(running(), {MemoryInstruction::kAtom, site, {}, range(p, sizeof *p)});
  if (races_ && acquires(order)) races_->acquire(id_of(running()), p);
  if (races_ && releases(order)) races_->release(id_of(running()), p);
  return std::exchange(word, applied(operation, word, operand));
}

uint32 Machine::ld_acquire(const uint32* p, Site site) {
  yield(Wait{"ld.acquire", site});
  const std::uint32_t& word = global_.word(p, site);
  note_global(AccessKind::kAtomic, p, sizeof *p, site);
  profile(running(), {MemoryInstruction::kLdAcquire, site, {}, range(p, sizeof *p)});
  if (races_) races_->acquire(id_of(running()), p);
  return word;
}

bool Machine::arrive(Rendezvous& group, const Wait& at, std::size_t expected) {
  if (group.threads.empty()) group.at = at;
  group.threads.push_back(&running());
  return group.threads.size() == expected;
}

void Machine::leave(Rendezvous& group) {
  if (profile_ != nullptr)
    for (const Thread* t : group.threads) profile_->meet(id_of(*t));
  for (Thread* other : group.threads)
    if (other != &running()) wake(*other);
  group.threads.clear();
}

void Machine::order(const Rendezvous& group) {
  if (!races_) return;
  std::vector<int> numbers(group.threads.size());
  std::ranges::transform(group.threads, numbers.begin(),
                         [](const Thread* t) { return t->kernel_view.thread; });
  races_->meet(running().cta->index, numbers);
}

// The rows of matrix m are at the addresses of lanes 8 m to 8 m + 7. Lane l receives elements 2 (l
// % 4) and 2 (l % 4) + 1 of row l / 4, or of column l / 4 if transposed.
void Machine::ldmatrix_x4(uint32 (&r)[4], uint32 row, bool transposed, Site site) {
  LdmatrixLane lane = {row, r};
  const Wait at = {transposed ? "ldmatrix.x4.trans" : "ldmatrix.x4", site};
  shared().check_access(row, kRowBytes, site);
  meet_warp(at, lane, [&](std::span<LdmatrixLane* const, kEmulatedWarp> lanes) {
    EmulatedCta& cta = *running().cta;
    const int first = running().warp() * kEmulatedWarp;
    std::uint16_t elements[kEmulatedWarp][8];  // the 8 elements of each row
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      Thread& owner = cta.threads[static_cast<std::size_t>(first) + i];
      blame(owner);
      cta.shared.load(elements[i], lanes[i]->row, kRowBytes, site);
      note_shared(AccessKind::kRead, owner, lanes[i]->row, kRowBytes, site);
      profile(owner, {MemoryInstruction::kLdmatrix, site, range(lanes[i]->row, kRowBytes)});
    }
    blame(running());
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      for (std::size_t matrix = 0; matrix < 4; ++matrix) {
        const auto element = [&](std::size_t along) {
          const std::size_t of_row = transposed ? along : i / 4;
          const std::size_t of_column = transposed ? i / 4 : along;
          return std::uint32_t{elements[matrix * 8 + of_row][of_column]};
        };
        lanes[i]->registers[matrix] = element(i % 4 * 2) | element(i % 4 * 2 + 1) << 16;
      }
    }
  });
}

void Machine::mma_m16n8k16(EmulatedElement element, float (&d)[4], const uint32 (&a)[4],
                           const uint32 (&b)[2], Site site) {
  MmaLane lane = {d, a, b};
  const char* name = element == EmulatedElement::kBf16 ? "mma.m16n8k16.bf16" : "mma.m16n8k16.f16";
  meet_warp({name, site}, lane, [&](std::span<MmaLane* const, kEmulatedWarp> lanes) {
    multiply_m16n8k16(element, lanes);
  });
}

uint64 Machine::shfl_sync(EmulatedShuffle kind, uint64 value, int32 operand, Site site) {
  ShuffleLane lane = {value, shuffle_source(kind, running().lane(), operand), 0};
  meet_warp({shuffle_name(kind), site}, lane, [](std::span<ShuffleLane* const> lanes) {
    for (ShuffleLane* to : lanes) to->received = lanes[static_cast<std::size_t>(to->source)]->given;
  });
  return lane.received;
}

uint32 Machine::vote_sync_ballot(bool predicate, Site site) {
  VoteLane lane = {predicate, 0};
  meet_warp({"vote.sync.ballot", site}, lane, [](std::span<VoteLane* const> lanes) {
    std::uint32_t ballot = 0;
    for (std::size_t i = 0; i < lanes.size(); ++i)
      if (lanes[i]->given) ballot |= 1U << i;
    for (VoteLane* to : lanes) to->received = ballot;
  });
  return lane.received;
}

void Machine::bar_warp_sync(Site site) {
  char nothing = 0;
  meet_warp({"bar.warp.sync", site}, nothing, [&](std::span<char* const>) {
    order(running().cta->warps[static_cast<std::size_t>(running().warp())]);
  });
}

void Machine::bar_sync(Site site) {
  EmulatedCta& cta = *running().cta;
  const Wait at = {"bar.sync 0", site};
  if (!arrive(cta.barrier, at, cta.threads.size())) return block(at);
  order(cta.barrier);
  leave(cta.barrier);
}

void Machine::cp_async(uint32 to, const void* from, int32 size, int32 bytes, Site site) {
  if (bytes < 0 || bytes > size)
    throw Violation{
        rule::kOperand, site,
        fmt::format("cp.async of {0} bytes reads {1}; 0 to {0} are allowed", size, bytes)};
  global_.check_copy(from, static_cast<std::size_t>(size), static_cast<std::size_t>(bytes), site);
  shared().begin_copy(to, static_cast<std::uint32_t>(size), site);
  note_shared(AccessKind::kWrite, running(), to, static_cast<std::uint32_t>(size), site);
  note_global(AccessKind::kRead, from, static_cast<std::size_t>(bytes), site);
  profile(running(), {MemoryInstruction::kCpAsync, site, range(to, size), range(from, bytes)});
  running().copies.add({to, from, size, bytes, site});
}

void Machine::cp_async_wait_group(int32 pending) {
  Thread& self = running();
  self.copies.wait(static_cast<std::size_t>(pending), [&](const AsyncCopy& copy) {
    std::array<std::byte, 16> data{};
    std::memcpy(data.data(), copy.from, static_cast<std::size_t>(copy.bytes));
    const auto size = static_cast<std::uint32_t>(copy.size);
    self.cta->shared.land_copy(copy.to, data.data(), size, self.kernel_view.thread);
    note_shared(AccessKind::kWrite, self, copy.to, size, copy.site);
  });
}

void run_emulated(const EmulatedLaunch& launch, const void* params, std::vector<MemoryRange> memory,
                  const EmulatorOptions& options) {
  static constinit ForkMutex one_at_a_time;  // a kernel's library has one pointer to its host
  static thread_local bool is_running = false;
  if (is_running)
    throw DriverError({.call = launch.name,
                       .text = "a signal or logging handler cannot run a kernel in the emulator "
                               "while this thread runs one there"});
  const std::unique_lock lock = lock_interruptibly(one_at_a_time);
  const Running running(is_running);
  Machine(launch, params, std::move(memory), options).run();
}

}  // namespace lazyrope
