#include "runtime/emulator/copy_box.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace lazyrope {
namespace {

constexpr std::uint32_t kBoxAlignment = 128;  // a tensor copy's address in shared memory

void check_multiple(std::uint64_t value, std::uint32_t of, const char* what, const Site& site) {
  if (value % of == 0) return;
  throw Violation{
      rule::kAlignment, site,
      fmt::format("a bulk copy's {} is {:#x}, which is not a multiple of {}", what, value, of)};
}

EmulatedTensorMap decode(const TensorMap& map, const Site& site) {
  EmulatedTensorMap decoded;
  std::memcpy(&decoded, &map, sizeof decoded);
  if (decoded.mark != EmulatedTensorMap::kMark)
    throw Violation{rule::kTensorMap, site,
                    "this is not a tensor map: pass one that Device::encode has made, by value, in "
                    "the kernel's parameters"};
  if (decoded.rank != kTensorMapDims)
    throw Violation{
        rule::kTensorMap, site,
        fmt::format("{} coordinates for a tensor of {} dimensions", kTensorMapDims, decoded.rank)};
  // The PTX manual does not define the layout of rows narrower than the swizzle.
  const int row = decoded.box[0] * decoded.element_bytes;
  if (decoded.swizzle != Swizzle::kNone && row != swizzle_span(decoded.swizzle))
    throw Violation{
        rule::kTensorMap, site,
        fmt::format(
            "the box has rows of {} bytes and a swizzle of {} bytes; make the rows as long as the "
            "swizzle",
            row, swizzle_span(decoded.swizzle))};
  return decoded;
}

// Throws if the box begins inside a chunk of 16 bytes. An H200 then ends the launch with an illegal
// instruction; the PTX manual does not mention this rule.
void check_start(const EmulatedTensorMap& map, Coordinates at, const Site& site) {
  const std::int64_t first = std::int64_t{at[0]} * map.element_bytes;
  if (first % CopyBox::kChunkBytes != 0)
    throw Violation{rule::kTensorMap, site,
                    fmt::format("a box begins at element {} of a row, byte {}; begin at a multiple "
                                "of {} bytes",
                                at[0], first, CopyBox::kChunkBytes)};
}

// The elements begin .. end-1 along one dimension of a tensor.
struct Extent {
  std::int64_t begin;
  std::int64_t end;
};

// Returns the elements of the tensor that are in a box which begins at element `at`.
Extent within(const EmulatedTensorMap& map, std::size_t dim, std::int32_t at) {
  return {std::max<std::int64_t>(at, 0),
          std::min(std::int64_t{at} + map.box[dim], static_cast<std::int64_t>(map.dims[dim]))};
}

// Returns the address of element 0 of the tensor's row that row `row` of the box copies, or none if
// the tensor has no such row.
std::optional<std::uint64_t> row_address(const EmulatedTensorMap& map, Coordinates at,
                                         std::uint32_t row) {
  std::uint64_t address = map.address;
  for (std::size_t dim = 1; dim < at.size(); ++dim) {
    const Extent extent = within(map, dim, at[dim]);
    const std::int64_t i = std::int64_t{at[dim]} + row % map.box[dim];
    if (i < extent.begin || i >= extent.end) return std::nullopt;
    address += static_cast<std::uint64_t>(i) * map.strides[dim];
    row /= map.box[dim];
  }
  return address;
}

}  // namespace

CopyBox linear_box(const void* global, std::uint32_t shared, std::uint32_t bytes,
                   const Site& site) {
  check_multiple(reinterpret_cast<std::uintptr_t>(global), CopyBox::kChunkBytes, "global address",
                 site);
  check_multiple(shared, CopyBox::kChunkBytes, "shared address", site);
  check_multiple(bytes, CopyBox::kChunkBytes, "size", site);
  auto* const address = static_cast<std::byte*>(const_cast<void*>(global));
  return {.shared = shared, .bytes = bytes, .runs = {{address, 0, bytes}}};
}

CopyBox tensor_box(const TensorMap& encoded, Coordinates at, std::uint32_t shared,
                   const Site& site) {
  const EmulatedTensorMap map = decode(encoded, site);
  check_start(map, at, site);
  check_multiple(shared, kBoxAlignment, "shared address", site);
  std::uint32_t rows = 1;
  for (std::size_t i = 1; i < at.size(); ++i) rows *= map.box[i];
  const std::uint32_t row_bytes = std::uint32_t{map.box[0]} * map.element_bytes;
  CopyBox box = {.shared = shared, .swizzle = map.swizzle, .bytes = rows * row_bytes};
  const Extent extent = within(map, 0, at[0]);
  if (extent.begin >= extent.end) return box;
  const auto skipped = static_cast<std::size_t>(extent.begin - at[0]) * map.element_bytes;
  const auto count = static_cast<std::size_t>(extent.end - extent.begin) * map.element_bytes;
  for (std::uint32_t row = 0; row < rows; ++row)
    if (const auto address = row_address(map, at, row))
      box.runs.push_back(
          {reinterpret_cast<std::byte*>(*address + static_cast<std::uint64_t>(extent.begin) *
                                                       map.element_bytes),
           std::size_t{row} * row_bytes + skipped, count});
  return box;
}

}  // namespace lazyrope
