#include "runtime/driver/tensor_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "codegen/error.h"

namespace lazyrope {
namespace {

// These are the rules of cuTensorMapEncodeTiled, in the order of its arguments.
constexpr std::size_t kMinDims = 2;
constexpr std::int64_t kMaxDim = std::int64_t{1} << 32;
constexpr std::int64_t kMaxStride = std::int64_t{1} << 40;
constexpr int kMaxBox = 256;
constexpr int kAlignment = 16;
constexpr int kMaxElementBytes = 4;

[[noreturn]] void refuse(const std::string& what) { throw SpecError("tensor map: " + what); }

void check_ranks(const TensorMapSpec& spec) {
  const std::size_t rank = spec.dims.size();
  if (rank < kMinDims || rank > kTensorMapDims)
    refuse(fmt::format("{} dims were given; {} to {} are allowed", rank, kMinDims, kTensorMapDims));
  if (spec.strides.size() != rank - 1)
    refuse(fmt::format("{} strides were given for {} dims; give {}, without the innermost's",
                       spec.strides.size(), rank, rank - 1));
  if (spec.box.size() != rank)
    refuse(fmt::format("a box of {} dims was given for a tensor of {}; give one extent for each",
                       spec.box.size(), rank));
}

void check_data(const TensorMapSpec& spec) {
  const auto address = reinterpret_cast<std::uintptr_t>(spec.data);
  if (address == 0 || address % kAlignment != 0)
    refuse(fmt::format("the data is at {:#x}; it must be at a multiple of {} bytes", address,
                       kAlignment));
}

void check_extents(const TensorMapSpec& spec) {
  for (std::size_t i = 0; i < spec.dims.size(); ++i)
    if (spec.dims[i] < 1 || spec.dims[i] > kMaxDim)
      refuse(fmt::format("dims[{}] is {}; 1 to 2^32 are allowed", i, spec.dims[i]));
  for (std::size_t i = 0; i < spec.strides.size(); ++i)
    if (spec.strides[i] < kAlignment || spec.strides[i] >= kMaxStride ||
        spec.strides[i] % kAlignment != 0)
      refuse(
          fmt::format("strides[{}] is {} bytes; a multiple of {} below 2^40 is needed: pad the "
                      "rows",
                      i, spec.strides[i], kAlignment));
  for (std::size_t i = 0; i < spec.box.size(); ++i)
    if (spec.box[i] < 1 || spec.box[i] > kMaxBox)
      refuse(fmt::format("box[{}] is {}; 1 to {} elements are allowed", i, spec.box[i], kMaxBox));
}

void check_rows_of_box(const TensorMapSpec& spec, int element_bytes) {
  const int bytes = spec.box[0] * element_bytes;
  if (bytes % kAlignment != 0)
    refuse(
        fmt::format("box[0] is {} elements of {} bytes, {} together; a multiple of {} bytes is "
                    "needed",
                    spec.box[0], element_bytes, bytes, kAlignment));
  if (spec.swizzle != Swizzle::kNone && bytes > swizzle_span(spec.swizzle))
    refuse(
        fmt::format("box[0] is {} elements of {} bytes, {} together; a swizzle of {} bytes "
                    "allows no more than these: use a wider swizzle, or several boxes",
                    spec.box[0], element_bytes, bytes, swizzle_span(spec.swizzle)));
}

}  // namespace

int tensor_map_element_bytes(ElementType type) {
  const int bytes = bytes_of(type);
  if (type != ElementType::kOther && bytes <= kMaxElementBytes) return bytes;
  refuse(fmt::format(
      "elements of {} were given; those of bfloat16, float16, float32, int32, uint8 and "
      "the two of float8 are allowed",
      to_string(type)));
}

void validate(const TensorMapSpec& spec) {
  const int element_bytes = tensor_map_element_bytes(spec.type);
  check_ranks(spec);
  check_data(spec);
  check_extents(spec);
  check_rows_of_box(spec, element_bytes);
}

TensorMap emulated_tensor_map(const TensorMapSpec& spec) {
  validate(spec);
  EmulatedTensorMap emulated{};
  emulated.mark = EmulatedTensorMap::kMark;
  emulated.element_bytes = static_cast<uint8>(tensor_map_element_bytes(spec.type));
  emulated.rank = static_cast<uint8>(spec.dims.size());
  emulated.swizzle = spec.swizzle;
  emulated.address = reinterpret_cast<std::uintptr_t>(spec.data);
  std::copy(spec.dims.begin(), spec.dims.end(), emulated.dims);
  emulated.strides[0] = emulated.element_bytes;
  std::copy(spec.strides.begin(), spec.strides.end(), emulated.strides + 1);
  std::copy(spec.box.begin(), spec.box.end(), emulated.box);
  TensorMap map{};
  std::memcpy(&map, &emulated, sizeof emulated);
  return map;
}

}  // namespace lazyrope
