#include "runtime/emulator/mbarriers.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "runtime/emulator/threads.h"

namespace lazyrope {
namespace {

constexpr std::uint32_t kMaxPending = (1U << 20) - 1;  // arrivals, or bytes

}  // namespace

Mbarrier::Mbarrier(std::uint32_t address, std::uint32_t count, const Site& site)
    : address_(address), count_(count), site_(site), missing_(count) {
  if (count < 1 || count > kMaxPending)
    throw Violation{
        rule::kMbarrierCount, site,
        fmt::format("an mbarrier of {} arrivals; 1 to {} are allowed", count, kMaxPending)};
}

std::string Mbarrier::describe() const {
  return fmt::format(
      "the mbarrier at {}, of {} arrivals, initialized at {} (phase {}: {} arrivals and {} bytes "
      "missing)",
      address_, count_, lazyrope::describe(site_), phase_, missing_, bytes_);
}

bool Mbarrier::settle(const Site& site) {
  if (missing_ > 0 || bytes_ != 0) return false;
  if (!woken.empty())
    throw Violation{rule::kMbarrierOvertaken, site,
                    fmt::format("this completes a phase of {} before thread {} has seen the "
                                "previous phase complete: the thread would wait for the next one",
                                describe(), woken.front()->kernel_view.thread)};
  ++phase_;
  missing_ = count_;
  complete.merge(std::exchange(arriving, {}));
  woken = std::exchange(waiting, {});
  return true;
}

bool Mbarrier::arrive(const Site& site) {
  if (missing_ == 0)
    throw Violation{rule::kMbarrierCount, site,
                    fmt::format("one arrival too many at {}", describe())};
  --missing_;
  return settle(site);
}

void Mbarrier::check_bytes(const Site& site) const {
  if (std::abs(bytes_) > kMaxPending)
    throw Violation{rule::kMbarrierBytes, site,
                    fmt::format("more than {} bytes are under way at {}", kMaxPending, describe())};
}

bool Mbarrier::expect(std::uint32_t bytes, const Site& site) {
  bytes_ += bytes;
  check_bytes(site);
  return settle(site);
}

bool Mbarrier::receive(std::uint32_t bytes, const Site& site) {
  bytes_ -= bytes;
  check_bytes(site);
  return settle(site);
}

Mbarrier& Mbarriers::begin(std::uint32_t address, std::uint32_t count, const Site& site) {
  const auto old = barriers_.find(address);
  const int number = old == barriers_.end() ? numbered_++ : old->second.number;
  Mbarrier& begun =
      barriers_.insert_or_assign(address, Mbarrier(address, count, site)).first->second;
  begun.number = number;
  return begun;
}

void Mbarriers::end(std::uint32_t address, const Site& site) {
  const Mbarrier& barrier = at(address, site);
  if (!barrier.waiting.empty())
    throw Violation{rule::kMbarrierObject, site,
                    fmt::format("{} is invalidated while threads wait for it", barrier.describe())};
  barriers_.erase(address);
}

Mbarrier& Mbarriers::at(std::uint32_t address, const Site& site) {
  if (address % kBytes != 0)
    throw Violation{rule::kAlignment, site,
                    fmt::format("an mbarrier at {} of shared memory, which is not a multiple of {}",
                                address, kBytes)};
  const auto it = barriers_.find(address);
  if (it == barriers_.end())
    throw Violation{
        rule::kMbarrierObject, site,
        fmt::format("no mbarrier has been initialized at {} of shared memory", address)};
  return it->second;
}

}  // namespace lazyrope
