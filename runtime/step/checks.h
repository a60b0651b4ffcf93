#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/base/tensor.h"
#include "runtime/driver/device.h"

namespace lazyrope {

// The range of the integers in the tensors of a step.
inline constexpr std::int64_t kLargestInt32 = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int64_t kSmallestInt32 = std::numeric_limits<std::int32_t>::min();

// Checks of arguments, and access to checked ones. Each check throws a SpecError that names the
// argument, its value and the allowed values. Shapes are in elements, alignments and rows in bytes.

// Checks that the device runs kernels of `arch`.
void check_arch(const Arch& arch, const Device& device);
void check_on_device(std::string_view name, const TensorView& tensor, const Device& device);
void check_type(std::string_view name, const TensorView& tensor, ElementType type);
void check_rank(std::string_view name, const TensorView& tensor, int rank, std::string_view shape);
void check_extent(std::string_view name, const TensorView& tensor, int dimension,
                  std::int64_t extent, std::string_view meaning);

void check_alignment(std::string_view name, const TensorView& tensor, int bytes);

// Checks that no two elements share memory, as those of an expanded tensor do.
void check_no_internal_overlap(std::string_view name, const TensorView& tensor);

// Checks that two tensors share no byte. Their types may differ, and their elements may alternate,
// as those of the q and k views of a fused QKV tensor do.
void check_no_overlap(std::string_view name, const TensorView& tensor, std::string_view other_name,
                      const TensorView& other);
inline void check_no_overlap(std::string_view name, const TensorView& tensor,
                             std::string_view other_name, const std::optional<TensorView>& other) {
  if (other) check_no_overlap(name, tensor, other_name, *other);
}

// Checks that kernels can read or write the rows `bytes` at a time: the last dimension is
// contiguous, and the address and all other strides are multiples of `bytes`.
void check_rows(std::string_view name, const TensorView& tensor, int element_bytes, int bytes);

// Returns the length of a contiguous one-dimensional tensor of integers, of `type`, on the device.
std::int64_t length_of_ints(std::string_view name, const TensorView& tensor, const Device& device,
                            ElementType type = ElementType::kInt32);
// Returns the elements of an int32 tensor that length_of_ints() has checked.
const int* ints(const TensorView& tensor);
// Returns the elements on the host. Waits for the stream.
template <class T = int>
std::vector<T> host_copy(const TensorView& tensor, const Device& device, Stream stream) {
  std::vector<T> values(static_cast<std::size_t>(tensor.elements()));
  if (!values.empty())
    device.copy_to_host(values.data(), tensor.data, values.size() * sizeof(T), stream);
  return values;
}

void check_length(std::string_view name, const TensorView& tensor, std::int64_t length,
                  const Device& device, ElementType type = ElementType::kInt32);
// Throws a SpecError that names the segment of a request.
[[noreturn]] void refuse_segment(std::size_t request, std::size_t segment, std::string_view why);
// Checks a segment's memory code (templates/abi/states.h) and the segment's slots.
void check_memory(std::size_t request, std::size_t segment, int memory, int length);

void check_within_capacity(std::string_view what, std::int64_t count, std::int64_t capacity);
// Checks that the device has the memory that a capacity takes. `capacity` is its text.
void check_room(std::string_view capacity, std::size_t bytes, const Device& device);

// A call that waits for the stream cannot be captured in a graph. `what` names the call.
void refuse_in_capture(std::string_view what, const Device& device, Stream stream);

}  // namespace lazyrope
