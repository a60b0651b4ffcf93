#include "runtime/emulator.h"

#include <fmt/format.h>

#include <array>
#include <boost/context/fiber.hpp>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace lazyrope {
namespace {

namespace context = boost::context;

constexpr int kWarp = 32;
constexpr std::size_t kStackBytes = std::size_t{128} * 1024;

struct AsyncCopy {
  std::uint32_t to;
  const void* from;
  std::int32_t size;
  std::int32_t bytes;
};

// Copies happen when they are waited for, so that a wait which is missing shows.
class AsyncCopies {
 public:
  void add(const AsyncCopy& copy) { open_.push_back(copy); }
  void commit() { groups_.push_back(std::move(open_)), open_.clear(); }

  void wait(std::size_t pending, std::uint8_t* shared) {
    while (groups_.size() > pending) {
      for (const AsyncCopy& copy : groups_.front()) {
        std::uint8_t* to = shared + copy.to;
        if (copy.bytes > 0) std::memcpy(to, copy.from, static_cast<std::size_t>(copy.bytes));
        std::memset(to + copy.bytes, 0, static_cast<std::size_t>(copy.size - copy.bytes));
      }
      groups_.pop_front();
    }
  }

 private:
  std::vector<AsyncCopy> open_;
  std::deque<std::vector<AsyncCopy>> groups_;
};

struct Thread {
  EmulatorThread place;
  context::fiber fiber;   // where to go on
  context::fiber resume;  // back to the scheduler
  AsyncCopies copies;
  const char* waits_for = nullptr;  // null: runnable
  bool finished = false;
};

// The lanes of a warp that have come to an operation.
struct Rendezvous {
  std::array<void*, kWarp> lanes{};
  const char* name = nullptr;
  int count = 0;
};

class Cta {
 public:
  Cta(const EmulatedLaunch& launch, const void* params, int block)
      : launch_(launch),
        params_(params),
        shared_(static_cast<std::size_t>(launch.shared_bytes)),
        threads_(static_cast<std::size_t>(launch.threads)),
        warps_(static_cast<std::size_t>(launch.threads / kWarp)) {
    for (int i = 0; i < launch.threads; ++i)
      threads_[static_cast<std::size_t>(i)].place = {i, block, launch.threads, launch.ctas};
  }

  void run();

  static Cta* current;
  EmulatorHost host{};

 private:
  static void warp_operation(const char* name, EmulatorOperation operation, void* lane) {
    current->meet_warp(name, operation, lane);
  }
  static void cta_barrier() { current->meet_cta(); }
  static void async_copy(std::uint32_t to, const void* from, std::int32_t size,
                         std::int32_t bytes) {
    current->running().copies.add({to, from, size, bytes});
  }
  static void async_commit() { current->running().copies.commit(); }
  static void async_wait(std::int32_t pending) {
    current->running().copies.wait(static_cast<std::size_t>(pending), current->shared_.data());
  }

  Thread& running() { return *running_; }
  void start(Thread& thread);
  void step(Thread& thread);
  void wait(const char* reason);
  void meet_warp(const char* name, EmulatorOperation operation, void* lane);
  void meet_cta();
  [[noreturn]] void report_deadlock() const;

  const EmulatedLaunch& launch_;
  const void* params_;
  std::vector<std::uint8_t> shared_;
  std::vector<Thread> threads_;
  std::vector<Rendezvous> warps_;
  int at_barrier_ = 0;
  Thread* running_ = nullptr;
  std::exception_ptr failure_;
};

Cta* Cta::current = nullptr;

void Cta::start(Thread& thread) {
  thread.fiber = context::fiber(std::allocator_arg, context::fixedsize_stack(kStackBytes),
                                [this, &thread](context::fiber&& scheduler) {
                                  thread.resume = std::move(scheduler);
                                  try {
                                    launch_.kernel(params_);
                                  } catch (const std::exception&) {
                                    failure_ = std::current_exception();
                                  }
                                  thread.finished = true;
                                  return std::move(thread.resume);
                                });
}

void Cta::step(Thread& thread) {
  running_ = &thread;
  host.thread = &thread.place;
  thread.fiber = std::move(thread.fiber).resume();
  if (failure_) std::rethrow_exception(failure_);
}

void Cta::wait(const char* reason) {
  Thread& thread = running();
  thread.waits_for = reason;
  thread.resume = std::move(thread.resume).resume();
}

void Cta::meet_warp(const char* name, EmulatorOperation operation, void* lane) {
  const int index = running().place.thread;
  Rendezvous& warp = warps_[static_cast<std::size_t>(index / kWarp)];
  if (warp.count > 0 && std::strcmp(warp.name, name) != 0)
    throw std::runtime_error(fmt::format("block {} warp {}: lane {} is at {}, others are at {}",
                                         running().place.block, index / kWarp, index % kWarp, name,
                                         warp.name));
  warp.name = name;
  warp.lanes[static_cast<std::size_t>(index % kWarp)] = lane;
  if (++warp.count < kWarp) return wait(name);
  operation(warp.lanes.data());
  warp.count = 0;
  const std::size_t first = static_cast<std::size_t>(index / kWarp) * kWarp;
  for (Thread& thread : std::span(threads_).subspan(first, kWarp)) thread.waits_for = nullptr;
}

void Cta::meet_cta() {
  if (++at_barrier_ < launch_.threads) return wait("bar.sync");
  at_barrier_ = 0;
  for (Thread& thread : threads_) thread.waits_for = nullptr;
}

void Cta::run() {
  current = this;
  host = {nullptr,    shared_.data(), warp_operation, cta_barrier,
          async_copy, async_commit,   async_wait};
  launch_.bind(&host);
  for (Thread& thread : threads_) start(thread);
  bool all_finished = false;
  while (!all_finished) {
    bool progress = false;
    all_finished = true;
    for (Thread& thread : threads_) {
      if (!thread.finished && thread.waits_for == nullptr) {
        step(thread);
        progress = true;
      }
      all_finished = all_finished && thread.finished;
    }
    if (!progress && !all_finished) report_deadlock();
  }
}

void Cta::report_deadlock() const {
  std::string waiting;
  for (const Thread& thread : threads_) {
    if (thread.finished) continue;
    waiting += fmt::format(" {}:{}", thread.place.thread, thread.waits_for);
  }
  throw std::runtime_error(fmt::format("block {}: no thread can go on; waiting are (thread:for){}",
                                       threads_[0].place.block, waiting));
}

}  // namespace

void run_emulated(const EmulatedLaunch& launch, const void* params) {
  static std::mutex one_at_a_time;  // the text's pointer to its host is one a library
  const std::lock_guard lock(one_at_a_time);
  for (int block = 0; block < launch.ctas; ++block) Cta(launch, params, block).run();
}

}  // namespace lazyrope
