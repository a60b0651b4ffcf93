#include "runtime/emulator/global_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace lazyrope {
namespace {

constexpr std::uintptr_t kWordBytes = 4;

std::uintptr_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

bool contains(const MemoryRange& range, const void* p, std::size_t bytes) {
  const std::uintptr_t begin = address_of(range.begin);
  const std::uintptr_t at = address_of(p);
  return at >= begin && bytes <= range.bytes && at - begin <= range.bytes - bytes;
}

void check_alignment(const void* p, std::size_t bytes, const Site& site) {
  if (address_of(p) % bytes == 0) return;
  throw Violation{rule::kAlignment, site,
                  fmt::format("{} bytes at {}, which is not a multiple of {}", bytes, p, bytes)};
}

// Returns the bytes between an address and a range.
std::uintptr_t distance(const MemoryRange& range, const void* p) {
  const std::uintptr_t begin = address_of(range.begin);
  const std::uintptr_t at = address_of(p);
  if (at < begin) return begin - at;
  return at - begin < range.bytes ? 0 : at - begin - range.bytes;
}

}  // namespace

void GlobalMemory::refuse(const void* p, std::size_t bytes, const Site& site) const {
  const auto nearest = std::ranges::min_element(
      ranges_, {}, [&](const MemoryRange& range) { return distance(range, p); });
  std::string where = "the launch was given no memory";
  if (nearest != ranges_.end())
    where =
        fmt::format("the nearest memory of the launch is {} ({} bytes), and this is at offset {}",
                    nearest->name, nearest->bytes,
                    static_cast<std::int64_t>(address_of(p) - address_of(nearest->begin)));
  throw Violation{rule::kGlobalBounds, site, fmt::format("{} bytes at {}; {}", bytes, p, where)};
}

const MemoryRange& GlobalMemory::range_of(const void* p, std::size_t bytes, const Site& site) {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const std::size_t at = (latest_ + i) % ranges_.size();
    if (!contains(ranges_[at], p, bytes)) continue;
    latest_ = at;
    return ranges_[at];
  }
  refuse(p, bytes, site);
}

void GlobalMemory::check_landed(const void* p, std::size_t bytes, const Site& site) const {
  for (const InFlight& copy : in_flight_)
    if (address_of(p) < copy.begin + copy.bytes && copy.begin < address_of(p) + bytes)
      throw Violation{
          rule::kInFlight, site,
          fmt::format("{} bytes at {}, which the copy issued at {} may not have written "
                      "yet",
                      bytes, p, describe(copy.site))};
}

void GlobalMemory::check_bulk(const void* from, std::size_t bytes, const Site& site) {
  range_of(from, bytes, site);
  check_landed(from, bytes, site);
}

std::uint32_t GlobalMemory::fences_of(ThreadId id) const {
  const auto it = fences_.find(number_of(id));
  return it == fences_.end() ? 0 : it->second;
}

void GlobalMemory::check_visible(const void* from, std::size_t bytes, const Site& site) const {
  for (std::uintptr_t at = address_of(from); at < address_of(from) + bytes; at += kWordBytes) {
    const auto it = words_written_.find(at);
    if (it == words_written_.end()) continue;
    const auto& [by, fences, stored_at] = it->second;
    if (by != kNobody && fences == fences_of(by))
      throw Violation{rule::kProxyFence, site,
                      fmt::format("this copies global memory that the store at {} wrote; no "
                                  "fence.proxy.async.global of its thread, {} of block {}, "
                                  "followed that store",
                                  describe(stored_at), by.thread, by.cta)};
  }
}

void GlobalMemory::begin_bulk_write(void* to, std::size_t bytes, const Site& site) {
  check_bulk(to, bytes, site);
  check_range_writable(to, bytes, site);
  in_flight_.push_back({address_of(to), bytes, site});
}

void GlobalMemory::land_bulk_write(void* to, const void* from, std::size_t bytes) {
  const auto landed = std::ranges::find_if(in_flight_, [&](const InFlight& copy) {
    return copy.begin == address_of(to) && copy.bytes == bytes;
  });
  const Site landed_at = landed->site;
  in_flight_.erase(landed);
  note_written(to, bytes, kNobody, landed_at);
  std::memcpy(to, from, bytes);
}

const MemoryRange& GlobalMemory::aligned_range(const void* p, std::size_t bytes, const Site& site) {
  check_alignment(p, bytes, site);
  return range_of(p, bytes, site);
}

void GlobalMemory::check_copy(const void* from, std::size_t size, std::size_t bytes,
                              const Site& site) {
  check_alignment(from, size, site);
  if (bytes > 0) range_of(from, bytes, site);
}

void GlobalMemory::check_writable(const void* p, std::size_t bytes, const Site& site) {
  check_alignment(p, bytes, site);
  check_range_writable(p, bytes, site);
}

void GlobalMemory::check_range_writable(const void* p, std::size_t bytes, const Site& site) {
  const MemoryRange& range = range_of(p, bytes, site);
  if (range.is_written) return;
  // Another range may hold the same bytes and be writable.
  if (is_written(p)) return;
  throw Violation{rule::kReadOnly, site, fmt::format("{} bytes of {}", bytes, range.name)};
}

bool GlobalMemory::is_written(const void* p) const {
  return std::ranges::any_of(ranges_, [&](const MemoryRange& range) {
    return range.is_written && contains(range, p, kWordBytes);
  });
}

void GlobalMemory::load(EmulatedLoad kind, void* to, const void* from, std::size_t bytes,
                        const Site& site) {
  aligned_range(from, bytes, site);
  check_landed(from, bytes, site);
  if (kind == EmulatedLoad::kNonCoherent)
    for (std::uintptr_t at = address_of(from); at < address_of(from) + bytes; at += kWordBytes)
      if (words_written_.contains(at))
        throw Violation{rule::kNonCoherent, site,
                        fmt::format("{} bytes of {}, some of which this launch has written", bytes,
                                    ranges_[latest_].name)};
  std::memcpy(to, from, bytes);
}

void GlobalMemory::note_written(const void* p, std::size_t bytes, ThreadId by, const Site& site) {
  const Written written = {by, by == kNobody ? 0 : fences_of(by), site};
  for (std::uintptr_t at = address_of(p) / kWordBytes * kWordBytes; at < address_of(p) + bytes;
       at += kWordBytes)
    words_written_[at] = written;
}

void GlobalMemory::store(void* to, const void* from, std::size_t bytes, ThreadId by,
                         const Site& site) {
  check_writable(to, bytes, site);
  check_landed(to, bytes, site);
  note_written(to, bytes, by, site);
  std::memcpy(to, from, bytes);
}

std::uint32_t& GlobalMemory::word(std::uint32_t* p, const Site& site) {
  check_writable(p, sizeof *p, site);
  words_written_[address_of(p)] = {kNobody, 0, site};
  return *p;
}

const std::uint32_t& GlobalMemory::word(const std::uint32_t* p, const Site& site) {
  aligned_range(p, sizeof *p, site);
  return *p;
}

}  // namespace lazyrope
