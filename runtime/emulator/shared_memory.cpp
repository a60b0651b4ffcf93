#include "runtime/emulator/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace lazyrope {
namespace {

constexpr int kPoison = 0xff;  // NaN in every floating-point format

}  // namespace

SharedMemory::SharedMemory(std::size_t bytes)
    : bytes_(bytes, std::byte{kPoison}), words_((bytes + kWordBytes - 1) / kWordBytes) {}

void SharedMemory::check_place(std::uint32_t address, std::uint32_t bytes, const Site& site) const {
  if (address > bytes_.size() || bytes > bytes_.size() - address)
    throw Violation{rule::kSharedBounds, site,
                    fmt::format("{} bytes at {}; the CTA has {} bytes of shared memory", bytes,
                                address, bytes_.size())};
  if (address % bytes != 0)
    throw Violation{rule::kAlignment, site,
                    fmt::format("{} bytes at {} of shared memory, which is no multiple of {}",
                                bytes, address, bytes)};
}

void SharedMemory::refuse_in_flight(std::size_t word, const char* access, const Site& site) const {
  throw Violation{
      rule::kInFlight, site,
      fmt::format("{} at {} of shared memory, where the copy issued at {} has not been waited for",
                  access, word * kWordBytes, describe(words_[word].site))};
}

void SharedMemory::check_landed(std::uint32_t address, std::uint32_t bytes, const char* access,
                                const Site& site) const {
  for (std::size_t i = address / kWordBytes; i < (address + bytes + kWordBytes - 1) / kWordBytes;
       ++i)
    if (words_[i].state == State::kInFlight) refuse_in_flight(i, access, site);
}

void SharedMemory::mark(std::uint32_t address, std::uint32_t bytes, Word word) {
  std::fill_n(words_.begin() + address / kWordBytes, (bytes + kWordBytes - 1) / kWordBytes, word);
}

void SharedMemory::load(void* to, std::uint32_t from, std::uint32_t bytes, const Site& site) const {
  check_place(from, bytes, site);
  check_landed(from, bytes, "a read", site);
  for (std::size_t i = from / kWordBytes; i < (from + bytes + kWordBytes - 1) / kWordBytes; ++i)
    if (words_[i].state == State::kUninitialized)
      throw Violation{rule::kUninitialized, site,
                      fmt::format("{} bytes at {}; nothing has been written at {}", bytes, from,
                                  i * kWordBytes)};
  std::memcpy(to, bytes_.data() + from, bytes);
}

void SharedMemory::store(std::uint32_t to, const void* from, std::uint32_t bytes,
                         const Site& site) {
  check_place(to, bytes, site);
  check_landed(to, bytes, "a write", site);
  std::memcpy(bytes_.data() + to, from, bytes);
  mark(to, bytes, {State::kValid, site});
}

void SharedMemory::begin_copy(std::uint32_t to, std::uint32_t bytes, const Site& site) {
  check_place(to, bytes, site);
  check_landed(to, bytes, "a copy", site);
  std::memset(bytes_.data() + to, kPoison, bytes);
  mark(to, bytes, {State::kInFlight, site});
}

void SharedMemory::land_copy(std::uint32_t to, const void* from, std::uint32_t bytes) {
  std::memcpy(bytes_.data() + to, from, bytes);
  for (std::size_t i = to / kWordBytes; i < (to + bytes) / kWordBytes; ++i)
    words_[i].state = State::kValid;
}

}  // namespace lazyrope
