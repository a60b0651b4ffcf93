#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/base/tensor.h"
#include "runtime/driver/device.h"

namespace lazyrope {

// Checks of arguments. Each throws SpecError that names the argument, what it is and what is
// allowed. And how checked ones are read.

// Kernels compiled for an arch run on no other.
void check_arch(const Arch& arch, const Device& device);
void check_on_device(std::string_view name, const TensorView& tensor, const Device& device);
void check_type(std::string_view name, const TensorView& tensor, ElementType type);
void check_rank(std::string_view name, const TensorView& tensor, int rank, std::string_view shape);
void check_extent(std::string_view name, const TensorView& tensor, int dimension,
                  std::int64_t extent, std::string_view meaning);

void check_alignment(std::string_view name, const TensorView& tensor, int bytes);

// No two elements share memory, as those of an expanded tensor do.
void check_written(std::string_view name, const TensorView& tensor);

// Nor two tensors of the same element type; they may be views of one whose rows take turns.
void check_apart(std::string_view name, const TensorView& tensor, std::string_view other_name,
                 const TensorView& other, int element_bytes);

// Nor any byte from the first to the last of two tensors, whatever their element types.
void check_disjoint(std::string_view name, const TensorView& tensor, std::string_view other_name,
                    const TensorView& other);

// Rows that kernels read or write `bytes` at a time: the last dimension is contiguous, and the
// address and all other strides are multiples of that.
void check_rows(std::string_view name, const TensorView& tensor, int element_bytes, int bytes);

// A contiguous one-dimensional int32 tensor on the device: its length.
std::int64_t length_of_ints(std::string_view name, const TensorView& tensor, const Device& device);
// What lies in a tensor that was so checked.
const int* ints(const TensorView& tensor);
// The same on the host. Waits for the stream.
std::vector<int> host_copy(const TensorView& tensor, const Device& device, Stream stream);
void check_length(std::string_view name, const TensorView& tensor, std::int64_t length,
                  const Device& device);
void check_within_capacity(std::string_view what, std::int64_t count, std::int64_t capacity);

// What waits for the stream cannot be captured in a graph.
void refuse_in_capture(std::string_view what, const Device& device, Stream stream);

}  // namespace lazyrope
