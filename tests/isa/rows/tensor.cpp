#include <fmt/format.h>

#include <array>

#include "tests/isa/rows/rows.h"

namespace lazyrope {
namespace {

constexpr int kBoxes = 12;
constexpr std::size_t kTensorAt = 64;  // word of the input, after the coordinates
constexpr std::uint32_t kBeyond = 3;   // elements by which a box may miss the tensor

constexpr std::array<const char*, 4> kSwizzleNames = {"plain", "32b", "64b", "128b"};

std::size_t bytes_of(const TensorMapSpec& spec) {
  return static_cast<std::size_t>(spec.strides.back() * spec.dims.back());
}

std::uint32_t box_words(const TensorMapSpec& spec) {
  int elements = 1;
  for (const int extent : spec.box) elements *= extent;
  return static_cast<std::uint32_t>(elements * tensor_map_element_bytes(spec.type) / 4);
}

// Makes a tensor with odd extents and padded strides. The rows of its boxes are as long as the
// swizzle allows.
TensorMapSpec tensor(ElementType type, Swizzle swizzle, std::vector<std::int64_t> outer,
                     const std::vector<int>& outer_box) {
  constexpr int kPlainRow = 48;
  constexpr std::int64_t kPadding = 16;
  TensorMapSpec spec;
  spec.type = type;
  spec.swizzle = swizzle;
  const int row = swizzle == Swizzle::kNone ? kPlainRow : swizzle_span(swizzle);
  const int elements = row / tensor_map_element_bytes(type);
  spec.dims = {2 * elements + 5};
  spec.box = {elements};
  std::int64_t stride = (spec.dims[0] * tensor_map_element_bytes(type) + 15) / 16 * 16;
  for (const std::int64_t extent : outer) {
    stride += kPadding;
    spec.strides.push_back(stride);
    stride *= extent;
  }
  spec.dims.insert(spec.dims.end(), outer.begin(), outer.end());
  spec.box.insert(spec.box.end(), outer_box.begin(), outer_box.end());
  return spec;
}

// The first box is within the tensor, the next four cross its edges or miss it, and the others are
// random.
std::uint32_t any_coordinate(Generator& random, const TensorMapSpec& spec, std::size_t dim,
                             int box) {
  const auto extent = static_cast<std::uint32_t>(spec.dims[dim]);
  const auto length = static_cast<std::uint32_t>(spec.box[dim]);
  const std::uint32_t any = random.below(extent + length + 2 * kBeyond) - length - kBeyond;
  if (box == 0) return random.below(extent - length + 1);
  if (box == 1) return 0u - length + 1;
  if (box == 2) return extent - 1;
  if (box == 3) return dim == 0 ? 0u - length : 0;
  if (box == 4) return dim == 0 ? 1 : extent;
  return any;
}

// Rounds the first coordinate down, because boxes begin at multiples of 16 bytes.
std::uint32_t coordinate(Generator& random, const TensorMapSpec& spec, std::size_t dim, int box) {
  const std::uint32_t any = any_coordinate(random, spec, dim, box);
  const auto chunk = static_cast<std::uint32_t>(16 / tensor_map_element_bytes(spec.type));
  return dim == 0 ? any & ~(chunk - 1) : any;
}

Words input_of_boxes(Generator& random, const TensorMapSpec& spec) {
  Words words = {box_words(spec)};
  for (int box = 0; box < kBoxes; ++box)
    for (std::size_t dim = 0; dim < spec.dims.size(); ++dim)
      words.push_back(coordinate(random, spec, dim, box));
  words.resize(kTensorAt);
  for (std::size_t i = 0; i < bytes_of(spec) / 4; ++i) words.push_back(random.bits32());
  return words;
}

std::string name_of(const TensorMapSpec& spec) {
  return fmt::format("tensor_load_{}d_{}_{}", spec.dims.size(), to_string(spec.type),
                     kSwizzleNames[static_cast<std::size_t>(spec.swizzle)]);
}

ConformanceCase load(const TensorMapSpec& spec) {
  ConformanceCase row;
  row.name = name_of(spec);
  row.kernel = "tensor";
  row.which = Case::kTensorLoad;
  row.wrappers = {"cp_async_bulk_tensor_load"};
  row.count = kBoxes;
  row.output_words = std::size_t{kBoxes} * box_words(spec);
  row.input = [=](Generator& random) { return input_of_boxes(random, spec); };
  row.tensor = {spec, kTensorAt};
  return row;
}

ConformanceCase load_evict_first(const TensorMapSpec& spec) {
  ConformanceCase row = load(spec);
  row.name += "_evict_first";
  row.which = Case::kTensorLoadEvictFirst;
  row.wrappers = {"cp_async_bulk_tensor_load_evict_first"};
  return row;
}

}  // namespace

ConformanceKernel tensor_kernel() {
  return {.name = "tensor", .shared_bytes = 1024 + 8192, .least_arch = "sm_90a"};
}

std::vector<ConformanceCase> tensor_cases() {
  using enum ElementType;
  using enum Swizzle;
  return {
      load(tensor(kUint8, k32B, {4, 3, 2, 3}, {3, 2, 1, 2})),
      load(tensor(kUint8, kNone, {4, 3, 2, 3}, {3, 2, 1, 2})),
      load(tensor(kBf16, kNone, {4, 3, 2, 3}, {2, 2, 2, 1})),
      load(tensor(kFp16, k64B, {4, 3, 2, 3}, {2, 2, 2, 1})),
      load_evict_first(tensor(kBf16, k128B, {4, 3, 2, 3}, {2, 2, 2, 1})),
  };
}

}  // namespace lazyrope
