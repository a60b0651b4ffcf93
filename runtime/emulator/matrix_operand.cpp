#include "runtime/emulator/matrix_operand.h"

#include <fmt/format.h>

#include <algorithm>

namespace lazyrope {
namespace {

constexpr int kCore = 8;  // rows of a core matrix

std::uint32_t field(std::uint64_t descriptor, int at) {
  return static_cast<std::uint32_t>(descriptor >> at & 0x3fff) << 4;
}

}  // namespace

MatrixOperand::MatrixOperand(std::uint64_t descriptor, bool is_mn_major, int extent,
                             int element_bytes, const Site& site)
    : start_(field(descriptor, 0)),
      leading_(field(descriptor, 16)),
      stride_(field(descriptor, 32)),
      swizzle_(static_cast<Swizzle>((4 - (descriptor >> 62)) % 4)),
      is_mn_major_(is_mn_major),
      element_bytes_(static_cast<std::uint32_t>(element_bytes)) {
  if (swizzle_ != Swizzle::kNone) check_start(extent, site);
}

// The pattern of a swizzle repeats after an atom of 8 rows. The operand must start in the first row
// of an atom, and its first row must not cross that row's end.
void MatrixOperand::check_start(int extent, const Site& site) const {
  const auto span = static_cast<std::uint32_t>(swizzle_span(swizzle_));
  const std::uint32_t in_atom = start_ % (kCore * span);
  const auto along = static_cast<std::uint32_t>(is_mn_major_ ? extent : depth()) * element_bytes_;
  if (in_atom + std::min(along, span) <= span) return;
  throw Violation{rule::kDescriptor, site,
                  fmt::format("the operand begins at {} of shared memory, {} bytes into an atom of "
                              "{}; its first row, of {} bytes, must be within the first {}",
                              start_, in_atom, kCore * span, std::min(along, span), span)};
}

std::uint32_t MatrixOperand::address(int mn, int k) const {
  const auto i = static_cast<std::uint32_t>(mn);
  const auto j = static_cast<std::uint32_t>(k);
  const auto span = static_cast<std::uint32_t>(swizzle_span(swizzle_));
  const std::uint32_t along = span / element_bytes_;            // elements of a row
  const std::uint32_t in_chunk = kChunkBytes / element_bytes_;  // elements of a chunk
  std::uint32_t offset = 0;
  if (swizzle_ == Swizzle::kNone)
    offset = is_mn_major_ ? i / in_chunk * stride_ + j / kCore * leading_ + j % kCore * span +
                                i % in_chunk * element_bytes_
                          : i / kCore * stride_ + j / in_chunk * leading_ + i % kCore * span +
                                j % in_chunk * element_bytes_;
  else if (is_mn_major_)
    offset =
        i / along * leading_ + i % along * element_bytes_ + j / kCore * stride_ + j % kCore * span;
  else
    offset = i / kCore * stride_ + i % kCore * span + j * element_bytes_;
  return swizzled(start_ + offset, swizzle_);
}

std::vector<std::uint32_t> MatrixOperand::chunks(int begin, int count) const {
  std::vector<std::uint32_t> result;
  const int in_chunk = static_cast<int>(kChunkBytes / element_bytes_);
  const int step_mn = is_mn_major_ ? in_chunk : 1;
  const int step_k = is_mn_major_ ? 1 : in_chunk;
  for (int mn = begin; mn < begin + count; mn += step_mn)
    for (int k = 0; k < depth(); k += step_k) result.push_back(address(mn, k));
  return result;
}

}  // namespace lazyrope
