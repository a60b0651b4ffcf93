#pragma once

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

// Small and the same everywhere (xorshift64*, Vigna 2016).
class RandomOrder {
 public:
  explicit RandomOrder(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  std::size_t below(std::size_t count);

 private:
  std::uint64_t state_;
};

// Runs the threads of a launch, one at a time, until all have ended. Those of a few CTAs are there
// at a time; when one of them waits, the next is drawn at random.
class Scheduler {
 public:
  Scheduler(const EmulatedLaunch& launch, const void* params, const EmulatorOptions& options)
      : launch_(launch),
        params_(params),
        resident_threads_(options.resident_threads),
        random_(options.seed) {}
  virtual ~Scheduler() = default;

  void run();

 protected:
  using Thread = EmulatedThreadState;

  Thread& running() { return *running_; }
  // The running thread waits until wake() is called for it.
  void block(const Wait& wait);
  void wake(Thread& thread);
  // Below `count`, at random.
  std::size_t draw(std::size_t count) { return random_.below(count); }
  // Lets others run. `spin`: what the running thread looks at again and again until another has
  // changed it.
  void yield(const std::optional<Wait>& spin);
  // A fault has ended the launch.
  bool is_unwinding() const { return is_unwinding_; }
  // Faults name this thread instead of the one that runs.
  void blame(Thread& thread) { blamed_ = &thread; }

 private:
  virtual void resumed(const Thread& thread) = 0;
  virtual void begun(EmulatedCta& cta) = 0;
  virtual void ended(EmulatedCta& cta) = 0;
  // The running thread has come to its end: throws where it left something behind.
  virtual void check_end() = 0;
  // No thread can go on, or all look at the same again and again: does what need not happen sooner.
  // Returns whether there was something.
  virtual bool land_latest() = 0;
  // Between any two steps: what may happen sooner.
  virtual void land_early() = 0;
  // What a thread of the CTA waits for.
  virtual std::string describe_wait(const EmulatedCta& cta, const Wait& wait) const = 0;

  void run_all();
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
  int slow_warp_ = -1;  // of each CTA: what others do before it comes is seldom drawn else
  int next_cta_ = 0;
  std::vector<std::unique_ptr<EmulatedCta>> ctas_;  // that are there
  std::vector<Thread*> runnable_;
  Thread* running_ = nullptr;
  Thread* blamed_ = nullptr;
  std::uint64_t spins_ = 0;  // since a thread did something
  std::uint64_t steps_ = 0;
  std::exception_ptr failure_;
  bool is_unwinding_ = false;
};

}  // namespace lazyrope
