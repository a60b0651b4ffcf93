// Where the caller's segments are in the pool, for the share kernel: pages, slots, and how many
// tokens two segments have in common.
#pragma once

#include "planner/inputs.cuh"

namespace lazyrope {

// The location of a token: a page list from the token's page on, and the slot in that page.
struct TokenLocation {
  const int32* pages;
  int32 slot;
};

class SegmentLocations {
 public:
  LAZYROPE_DEVICE SegmentLocations(const StepInputs& inputs, const Divisor& page_size)
      : in_(inputs), page_size_(page_size) {}

  LAZYROPE_DEVICE int32 base(int32 segment) const { return ld_global_nc(in_.base + segment); }
  LAZYROPE_DEVICE int32 mask_base(int32 segment) const {
    return in_.mask_base == nullptr ? base(segment) : ld_global_nc(in_.mask_base + segment);
  }
  LAZYROPE_DEVICE int32 start(int32 segment) const { return ld_global_nc(in_.start + segment); }
  LAZYROPE_DEVICE int32 length(int32 segment) const { return ld_global_nc(in_.length + segment); }

  // Returns the location of the segment's token `offset`.
  LAZYROPE_DEVICE TokenLocation location(int32 segment, int32 offset) const {
    const int32 slot = lead(segment) + offset;
    const int32 page = quotient(slot, page_size_);
    return {in_.pages + first_page(segment) + page, slot - page * page_size_.value};
  }
  // Returns the pages of `length` tokens from a location on.
  LAZYROPE_DEVICE int32 num_pages(const TokenLocation& from, int32 length) const {
    return ceil_div(from.slot + length, page_size_);
  }
  LAZYROPE_DEVICE int32 page_size() const { return page_size_.value; }

  // Returns how many of `length` tokens from two locations on are in the same slots. The locations
  // have the same slot in their pages.
  LAZYROPE_DEVICE int32 common_tokens(const TokenLocation& a, const TokenLocation& b,
                                      int32 length) const {
    if (a.pages == b.pages) return length;
    const int32 count = num_pages(a, length);
    const int32 common = common_pages(a.pages, b.pages, count);
    return common == count ? length : larger(common * page_size_.value - a.slot, 0);
  }

  // Writes `length` tokens of a segment, from its token `offset` on, as segment `at` of a step.
  LAZYROPE_DEVICE void write(const SegmentArrays& to, int32 at, int32 base, int32 segment,
                             int32 offset, int32 length) const {
    st_global(to.base + at, base);
    st_global(to.start + at, start(segment) + offset);
    st_global(to.length + at, length);
    st_global(to.lead + at, lead(segment) + offset);
    st_global(to.first_page + at, first_page(segment));
  }

 private:
  LAZYROPE_DEVICE int32 lead(int32 segment) const {
    return in_.lead == nullptr ? 0 : ld_global_nc(in_.lead + segment);
  }
  LAZYROPE_DEVICE int32 first_page(int32 segment) const {
    return ld_global_nc(in_.first_page + segment);
  }
  LAZYROPE_DEVICE static int32 common_pages(const int32* a, const int32* b, int32 count) {
    constexpr int32 kAtOnce = 16;  // loads of each list that are in flight together
#pragma unroll 1
    for (int32 first = 0; first < count; first += kAtOnce) {
      uint32 differs = 0;
#pragma unroll
      for (int32 i = 0; i < kAtOnce; ++i) {
        const int32 at = smaller(first + i, count - 1);
        differs |= (ld_global_nc(a + at) != ld_global_nc(b + at) ? 1u : 0u) << i;
      }
      if (differs != 0) return first + lowest_one(differs);
    }
    return count;
  }

  const StepInputs& in_;
  const Divisor& page_size_;
};

}  // namespace lazyrope
