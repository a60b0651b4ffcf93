#include "runtime/emulator/scheduler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <map>
#include <tuple>
#include <utility>

#include "runtime/base/interruption.h"

namespace lazyrope {
namespace {

namespace context = boost::context;

constexpr std::size_t kStackBytes = std::size_t{128} * 1024;
constexpr std::uint64_t kMaxSpins = 1'000'000;
constexpr std::uint64_t kSpinsToLand = 1000;
// A thread that polls may wait at a barrier between two polls, which resets the count of polls. So
// copies also land every kStepsToLand steps.
constexpr std::uint64_t kStepsToLand = 100'000;
// A thread of the slow warp continues only if the draw picks that warp kSlowness + 1 times.
constexpr int kSlowness = 6;

// One launch runs at a time, so the pool needs no lock.
context::pooled_fixedsize_stack& stacks() {
  static context::pooled_fixedsize_stack pool(kStackBytes);
  return pool;
}

// Formats sorted numbers as "0-31, 64".
std::string ranges_of(const std::vector<int>& numbers) {
  std::vector<std::string> ranges;
  for (std::size_t begin = 0; begin < numbers.size();) {
    std::size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    ranges.push_back(end - begin == 1 ? fmt::to_string(numbers[begin])
                                      : fmt::format("{}-{}", numbers[begin], numbers[end - 1]));
    begin = end;
  }
  return fmt::format("{}", fmt::join(ranges, ", "));
}

}  // namespace

std::string describe(const Site& site) { return fmt::format("{}:{}", site.file, site.line); }

std::size_t RandomOrder::below(std::size_t count) {
  state_ ^= state_ >> 12;
  state_ ^= state_ << 25;
  state_ ^= state_ >> 27;
  return (state_ * 0x2545f4914f6cdd1d >> 32) % count;
}

void Scheduler::begin_ctas() {
  const auto most = static_cast<std::size_t>(std::max(1, resident_threads_ / launch_.threads));
  while (next_cta_ < launch_.ctas && ctas_.size() < most) {
    ctas_.push_back(std::make_unique<EmulatedCta>(next_cta_++, launch_.threads, launch_.ctas,
                                                  static_cast<std::size_t>(launch_.shared_bytes)));
    begun(*ctas_.back());
    for (Thread& thread : ctas_.back()->threads) begin(thread);
  }
}

void Scheduler::begin(Thread& thread) {
  thread.fiber =
      context::fiber(std::allocator_arg, stacks(), [this, &thread](context::fiber&& scheduler) {
        thread.resume = std::move(scheduler);
        run_body();
        thread.finished = true;
        return std::move(thread.resume);
      });
  runnable_.push_back(&thread);
}

void Scheduler::run_body() {
  try {
    launch_.kernel(params_);
    check_end();
  } catch (const Violation& violation) {
    failure_ = std::make_exception_ptr(fault(violation));
  } catch (const std::exception&) {
    failure_ = std::current_exception();
  }
}

void Scheduler::step(Thread& thread) {
  running_ = blamed_ = &thread;
  ++steps_;
  resumed(thread);
  thread.fiber = std::move(thread.fiber).resume();
  if (failure_) std::rethrow_exception(failure_);
  if (spins_ > kMaxSpins && thread.wait)
    throw fault({rule::kLivelock, thread.wait->site,
                 fmt::format("{} polls of a value that no thread changes any more", kMaxSpins)});
  if (thread.finished) finish(thread);
}

void Scheduler::finish(Thread& thread) {
  EmulatedCta& cta = *thread.cta;
  if (--cta.unfinished > 0) return;
  ended(cta);
  std::erase_if(ctas_, [&](const auto& other) { return other.get() == &cta; });
}

void Scheduler::block(const Wait& wait) {
  Thread& thread = running();
  spins_ = 0;
  thread.wait = wait;
  thread.resume = std::move(thread.resume).resume();
}

void Scheduler::wake(Thread& thread) {
  thread.wait.reset();
  runnable_.push_back(&thread);
}

void Scheduler::yield(const std::optional<Wait>& spin) {
  Thread& thread = running();
  thread.wait = spin;
  spins_ = spin ? spins_ + 1 : 0;
  runnable_.push_back(&thread);
  thread.resume = std::move(thread.resume).resume();
  thread.wait.reset();
}

void Scheduler::run() {
  try {
    run_all();
  } catch (const Violation& violation) {  // by a copy that landed between two steps
    failure_ = std::make_exception_ptr(fault(violation));
  } catch (...) {
    failure_ = std::current_exception();
  }
  if (!failure_) return;
  // The destructors of fibers may call instructions of the derived class, which still exists here.
  is_unwinding_ = true;
  ctas_.clear();
  std::rethrow_exception(failure_);
}

std::size_t Scheduler::draw_next() {
  std::size_t next = draw(runnable_.size());
  for (int i = 0; i < kSlowness && runnable_[next]->warp() == slow_warp_; ++i)
    next = draw(runnable_.size());
  return next;
}

void Scheduler::check_interruption_now_and_then() {
  constexpr std::uint64_t kStepsBetween = 1024;  // a few milliseconds
  if (steps_ % kStepsBetween != 0) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_check_) return;
  next_check_ = now + kCheckPause;
  check_interruption();
}

void Scheduler::run_all() {
  // About half of all seeds pick a slow warp. The others pick none.
  slow_warp_ =
      static_cast<int>(draw(static_cast<std::size_t>(2 * launch_.threads / kEmulatedWarp)));
  for (begin_ctas(); !ctas_.empty(); begin_ctas()) {
    const bool is_stuck = runnable_.empty();
    const bool is_long =
        spins_ % kSpinsToLand == kSpinsToLand - 1 || steps_ % kStepsToLand == kStepsToLand - 1;
    if ((is_stuck || is_long) && !land_latest() && is_stuck) report_deadlock();
    land_early();
    if (runnable_.empty()) continue;
    check_interruption_now_and_then();
    std::swap(runnable_[draw_next()], runnable_.back());
    Thread& thread = *runnable_.back();
    runnable_.pop_back();
    step(thread);
  }
}

KernelFault Scheduler::fault(const Violation& violation) const {
  const EmulatorThread& kernel_view = blamed_->kernel_view;
  return {violation.rule,
          fmt::format("{}: {}\nat {}, {}, block {}, warp {}, lane {} (thread {})", violation.rule,
                      violation.text, describe(violation.site), launch_.name, kernel_view.block,
                      blamed_->warp(), blamed_->lane(), kernel_view.thread)};
}

void Scheduler::report_deadlock() const {
  // The waiting threads by block, barrier and line.
  std::map<std::tuple<int, std::string, std::string>, std::vector<int>> waiting;
  for (const auto& cta : ctas_)
    for (const Thread& thread : cta->threads)
      if (thread.wait)
        waiting[{cta->index, describe_wait(*cta, *thread.wait), describe(thread.wait->site)}]
            .push_back(thread.kernel_view.thread);
  std::string text = fmt::format("{}: no thread of {} can continue", rule::kDeadlock, launch_.name);
  for (const auto& [where, threads] : waiting) {
    const auto& [block, what, site] = where;
    text += fmt::format("\nblock {}: threads {} wait in {} at {}", block, ranges_of(threads), what,
                        site);
  }
  for (const auto& cta : ctas_)
    if (const auto ended = static_cast<int>(cta->threads.size()) - cta->unfinished; ended > 0)
      text += fmt::format("\nblock {}: {} threads have ended", cta->index, ended);
  throw KernelFault(rule::kDeadlock, text);
}

}  // namespace lazyrope
