#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/emulator/device.h"
#include "runtime/emulator/launch.h"
#include "runtime/emulator/threads.h"

namespace lazyrope {

// A generator of random numbers that is small and the same on every host (xorshift64*, Vigna 2016).
class RandomOrder {
 public:
  explicit RandomOrder(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  std::size_t below(std::size_t count);

 private:
  std::uint64_t state_;
};

// Runs the threads of a launch as fibers, one at a time, until all have ended. A few CTAs are
// resident at a time. When a thread waits, a random draw picks the next. The seed decides all
// draws, so a fault can be reproduced. Not thread-safe.
class Scheduler {
 public:
  Scheduler(const EmulatedLaunch& launch, const void* params, const EmulatorOptions& options)
      : launch_(launch),
        params_(params),
        resident_threads_(options.resident_threads),
        random_(options.seed) {}
  virtual ~Scheduler() = default;

  // Runs the launch. A broken rule, a deadlock or an endless poll throws a KernelFault.
  // check_interruption() is called about 20 times a second and ends the launch by an exception.
  void run();

 protected:
  using Thread = EmulatedThreadState;

  Thread& running() { return *running_; }
  // Suspends the running thread until wake() is called for it.
  void block(const Wait& wait);
  void wake(Thread& thread);
  // Returns a random number below `count`.
  std::size_t draw(std::size_t count) { return random_.below(count); }
  // Lets other threads run. `spin` names a value that the running thread polls until another thread
  // changes it; too many polls in a row are a livelock.
  void yield(const std::optional<Wait>& spin);
  // Returns true once a fault has ended the launch.
  bool is_unwinding() const { return is_unwinding_; }
  // Makes faults name this thread instead of the running one.
  void blame(Thread& thread) { blamed_ = &thread; }

 private:
  static constexpr std::chrono::milliseconds kCheckPause{50};

  // Called when a thread continues, when a CTA begins, and when all threads of a CTA have ended.
  virtual void resumed(const Thread& thread) = 0;
  virtual void begun(EmulatedCta& cta) = 0;
  virtual void ended(EmulatedCta& cta) = 0;
  // Called at the end of the running thread. Throws if the thread has left an asynchronous
  // operation open.
  virtual void check_end() = 0;
  // Called if no thread can continue, and after many polls or steps. Completes one asynchronous
  // operation that need not complete sooner. Returns false if there is none.
  virtual bool land_latest() = 0;
  // Called before each step. May complete an asynchronous operation that may complete sooner.
  virtual void land_early() = 0;
  // Describes what a thread of the CTA waits for.
  virtual std::string describe_wait(const EmulatedCta& cta, const Wait& wait) const = 0;

  void run_all();
  void check_interruption_now_and_then();
  std::size_t draw_next();
  void begin_ctas();
  void begin(Thread& thread);
  void run_body();
  void step(Thread& thread);
  void finish(Thread& thread);
  KernelFault fault(const Violation& violation) const;
  [[noreturn]] void report_deadlock() const;

  const EmulatedLaunch& launch_;
  const void* params_;
  int resident_threads_;
  RandomOrder random_;
  int slow_warp_ = -1;  // a warp of each CTA that is drawn seldom, so that others run ahead of it
  int next_cta_ = 0;
  std::vector<std::unique_ptr<EmulatedCta>> ctas_;  // the resident CTAs
  std::vector<Thread*> runnable_;
  Thread* running_ = nullptr;
  Thread* blamed_ = nullptr;
  std::uint64_t spins_ = 0;  // polls since a thread last did something else
  std::uint64_t steps_ = 0;  // how many times a thread has continued
  std::chrono::steady_clock::time_point next_check_ =
      std::chrono::steady_clock::now() + kCheckPause;
  std::exception_ptr failure_;
  bool is_unwinding_ = false;
};

}  // namespace lazyrope
