// The keys by which the share kernel sorts segments. Host code reads this file, too: the model in
// tests/unit/runtime_share_test.cpp has the same order.
#pragma once

#include "abi/share.h"

namespace lazyrope {

// A segment from some token on, as its key sees it.
struct ShareKeyFields {
  int32 first_page;  // page of its first token
  int32 slot;        // slot of that token in the page
  int32 last_page;
  int32 pages;
  int32 length;
  int32 segment;  // its index in the step
};

// A key is, from the highest bit on: 20 bits of a hash of the first page and 12 bits of the slot
// there, which a family has in common; 6 bits for the number of pages, the least for the most; 6
// bits of a hash of the last page and the length, so that equal segments are neighbours; and the
// segment's index. Different pages can have the same hash, so segments with the same first bits may
// be of different families.
struct ShareKey {
  static constexpr uint32 kOthers = 0xffffffff;  // first bits of segments that cannot be shared
  static constexpr int32 kSlotBits = 12;

  static constexpr uint32 page_bits(int32 page) {
    constexpr uint32 kMax = (kOthers >> kSlotBits) - 1;
    const uint32 bits = mixed(static_cast<uint32>(page)) >> kSlotBits;
    const uint32 at_least_one = bits == 0 ? 1 : bits;
    return at_least_one > kMax ? kMax : at_least_one;
  }
  static constexpr uint32 first_bits(int32 page, int32 slot) {
    constexpr int32 kMaxSlot = (1 << kSlotBits) - 1;
    return page_bits(page) << kSlotBits | static_cast<uint32>(slot < kMaxSlot ? slot : kMaxSlot);
  }
  static constexpr uint32 first_bits(uint64 key) { return static_cast<uint32>(key >> 32); }
  static constexpr int32 segment(uint64 key) {
    return static_cast<int32>(static_cast<uint32>(key) & ((1u << kShareIndexBits) - 1));
  }

  static constexpr uint64 make(const ShareKeyFields& of) {
    const uint32 content =
        mixed(static_cast<uint32>(of.last_page) * 31 + static_cast<uint32>(of.length)) >> 26;
    return least(first_bits(of.first_page, of.slot)) | (63 - size_level(of.pages)) << 26 |
           content << kShareIndexBits | static_cast<uint32>(of.segment);
  }
  static constexpr uint64 of_others(int32 segment) {
    return least(kOthers) | static_cast<uint32>(segment);
  }
  // Returns the least key that has these first bits.
  static constexpr uint64 least(uint32 first_bits) { return static_cast<uint64>(first_bits) << 32; }

 private:
  static constexpr uint32 mixed(uint32 word) {
    word *= 0x9e3779b1u;
    return (word ^ word >> 15) * 0x85ebca6bu;
  }
  // Returns 4 floor(log2(pages)) and the next two bits of the number, at most 63.
  static constexpr uint32 size_level(int32 pages) {
    uint32 rest = static_cast<uint32>(pages);
    uint32 log = 0;
    for (uint32 step = 16; step > 0; step /= 2)
      if (rest >> step != 0) {
        rest >>= step;
        log += step;
      }
    if (log >= 16) return 63;
    return 4 * log + (static_cast<uint32>(pages) * 4 >> log) % 4;
  }
};

}  // namespace lazyrope
