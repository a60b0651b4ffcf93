#include "runtime/emulator/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace lazyrope {
namespace {

constexpr int kPoison = 0xff;  // NaN in every floating-point format

}  // namespace

SharedMemory::SharedMemory(std::size_t bytes, int threads)
    : bytes_(bytes, std::byte{kPoison}),
      words_((bytes + kWordBytes - 1) / kWordBytes),
      fences_(static_cast<std::size_t>(threads)) {}

std::span<SharedMemory::Word> SharedMemory::words(std::uint32_t address, std::uint32_t bytes) {
  const std::size_t first = address / kWordBytes;
  return std::span(words_).subspan(first, (address + bytes + kWordBytes - 1) / kWordBytes - first);
}

std::span<const SharedMemory::Word> SharedMemory::words(std::uint32_t address,
                                                        std::uint32_t bytes) const {
  const std::size_t first = address / kWordBytes;
  return std::span(words_).subspan(first, (address + bytes + kWordBytes - 1) / kWordBytes - first);
}

std::size_t SharedMemory::address_of(const Word& word) const {
  return static_cast<std::size_t>(&word - words_.data()) * kWordBytes;
}

SharedMemory::Word SharedMemory::stored(State state, const Site& site, int thread) const {
  Word word;
  word.state = state;
  word.site = site;
  word.thread = thread;
  if (thread != kNobody) word.fences = fences_[static_cast<std::size_t>(thread)];
  return word;
}

void SharedMemory::check_bounds(std::uint32_t address, std::uint32_t bytes,
                                const Site& site) const {
  if (address > bytes_.size() || bytes > bytes_.size() - address)
    throw Violation{rule::kSharedBounds, site,
                    fmt::format("{} bytes at {}; the CTA has {} bytes of shared memory", bytes,
                                address, bytes_.size())};
}

void SharedMemory::check_access(std::uint32_t address, std::uint32_t bytes,
                                const Site& site) const {
  check_bounds(address, bytes, site);
  if (address % bytes != 0)
    throw Violation{rule::kAlignment, site,
                    fmt::format("{} bytes at {} of shared memory, which is not a multiple of {}",
                                bytes, address, bytes)};
}

void SharedMemory::check_landed(std::uint32_t address, std::uint32_t bytes, const char* access,
                                const Site& site) const {
  for (const Word& word : words(address, bytes)) {
    if (word.state == State::kInFlight)
      throw Violation{rule::kInFlight, site,
                      fmt::format("{} at {} of shared memory, where the copy issued at {} has not "
                                  "been waited for",
                                  access, address_of(word), describe(word.site))};
    if (word.state == State::kBarrier)
      throw Violation{rule::kMbarrierObject, site,
                      fmt::format("{} at {} of shared memory, where an mbarrier was initialized at "
                                  "{}",
                                  access, address_of(word), describe(word.site))};
  }
}

void SharedMemory::check_initialized(std::uint32_t address, std::uint32_t bytes,
                                     const Site& site) const {
  for (const Word& word : words(address, bytes))
    if (word.state == State::kUninitialized)
      throw Violation{rule::kUninitialized, site,
                      fmt::format("{} bytes at {}; nothing has been written at {}", bytes, address,
                                  address_of(word))};
}

void SharedMemory::check_unread(std::uint32_t address, std::uint32_t bytes, const char* access,
                                const Site& site) const {
  for (const Word& word : words(address, bytes))
    if (word.reads > 0)
      throw Violation{rule::kSourceInUse, site,
                      fmt::format("{} at {} of shared memory, which the copy or product issued at "
                                  "{} may not have read yet",
                                  access, address_of(word), describe(word.read))};
}

void SharedMemory::check_fenced(std::uint32_t address, std::uint32_t bytes,
                                const Site& site) const {
  for (const Word& word : words(address, bytes))
    if (word.thread != kNobody && word.fences == fences_[static_cast<std::size_t>(word.thread)])
      throw Violation{rule::kProxyFence, site,
                      fmt::format("the store at {} to {} of shared memory was not followed by a "
                                  "fence.proxy.async of its thread, {}",
                                  describe(word.site), address_of(word), word.thread)};
}

void SharedMemory::load(void* to, std::uint32_t from, std::uint32_t bytes, const Site& site) const {
  check_access(from, bytes, site);
  check_landed(from, bytes, "a read", site);
  check_initialized(from, bytes, site);
  std::memcpy(to, bytes_.data() + from, bytes);
}

void SharedMemory::store(std::uint32_t to, const void* from, std::uint32_t bytes, const Site& site,
                         int thread) {
  check_access(to, bytes, site);
  check_landed(to, bytes, "a write", site);
  check_unread(to, bytes, "a write", site);
  std::memcpy(bytes_.data() + to, from, bytes);
  std::ranges::fill(words(to, bytes), stored(State::kValid, site, thread));
}

void SharedMemory::begin_copy(std::uint32_t to, std::uint32_t bytes, const Site& site) {
  check_access(to, bytes, site);
  check_landed(to, bytes, "a copy", site);
  check_unread(to, bytes, "a copy", site);
  poison(to, bytes, site);
}

void SharedMemory::poison(std::uint32_t to, std::uint32_t bytes, const Site& site) {
  std::memset(bytes_.data() + to, kPoison, bytes);
  std::ranges::fill(words(to, bytes), stored(State::kInFlight, site, kNobody));
}

void SharedMemory::land_copy(std::uint32_t to, const void* from, std::uint32_t bytes, int thread) {
  std::memcpy(bytes_.data() + to, from, bytes);
  const std::span<Word> landed = words(to, bytes);
  std::ranges::fill(landed, stored(State::kValid, landed.front().site, thread));
}

void SharedMemory::begin_bulk_write(std::uint32_t to, std::uint32_t bytes, const Site& site) {
  check_bounds(to, bytes, site);
  check_landed(to, bytes, "a copy", site);
  check_unread(to, bytes, "a copy", site);
  check_fenced(to, bytes, site);
  poison(to, bytes, site);
}

void SharedMemory::land_bulk_write(std::uint32_t to, const void* from, std::uint32_t bytes) {
  land_copy(to, from, bytes, kNobody);
}

void SharedMemory::begin_bulk_read(std::uint32_t from, std::uint32_t bytes, const Site& site) {
  check_bounds(from, bytes, site);
  check_landed(from, bytes, "a read", site);
  check_initialized(from, bytes, site);
  check_fenced(from, bytes, site);
  for (Word& word : words(from, bytes)) {
    ++word.reads;
    word.read = site;
  }
}

void SharedMemory::end_bulk_read(std::uint32_t from, std::uint32_t bytes) {
  for (Word& word : words(from, bytes)) --word.reads;
}

void SharedMemory::begin_barrier(std::uint32_t address, std::uint32_t bytes, const Site& site) {
  check_access(address, bytes, site);
  check_landed(address, bytes, "an mbarrier.init", site);
  check_unread(address, bytes, "an mbarrier.init", site);
  std::ranges::fill(words(address, bytes), stored(State::kBarrier, site, kNobody));
}

void SharedMemory::end_barrier(std::uint32_t address, std::uint32_t bytes) {
  std::ranges::fill(words(address, bytes), Word{});
}

}  // namespace lazyrope
