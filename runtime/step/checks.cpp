#include "runtime/step/checks.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "codegen/error.h"

namespace lazyrope {

void check_arch(const Arch& arch, const Device& device) {
  // The emulator runs the kernels of every emulated arch.
  const bool is_emulated = device.arch().isa == "emu" && arch.isa == "emu";
  if (device.arch().name != arch.name && !is_emulated)
    throw SpecError(fmt::format(
        "the kernels were compiled for {}, but the tensors are on {}, which needs {}; move "
        "them, or compile with arch=\"{}\"",
        arch.name, device.name(), device.arch().name, device.arch().name));
}

void check_on_device(std::string_view name, const TensorView& tensor, const Device& device) {
  if (!device.holds(tensor.device_type, tensor.device))
    throw SpecError(fmt::format("{} is {}; it must be on {}, the kernel's device", name,
                                describe(tensor), device.name()));
}

void check_type(std::string_view name, const TensorView& tensor, ElementType type) {
  if (tensor.type != type)
    throw SpecError(
        fmt::format("{} is {}; its dtype must be {}", name, describe(tensor), to_string(type)));
}

void check_rank(std::string_view name, const TensorView& tensor, int rank, std::string_view shape) {
  if (tensor.rank != rank)
    throw SpecError(fmt::format("{} is {}; its shape must be {}", name, describe(tensor), shape));
}

void check_extent(std::string_view name, const TensorView& tensor, int dimension,
                  std::int64_t extent, std::string_view meaning) {
  if (tensor.shape[static_cast<std::size_t>(dimension)] != extent)
    throw SpecError(fmt::format("{} is {}; dimension {} must be {} ({})", name, describe(tensor),
                                dimension, extent, meaning));
}

void check_alignment(std::string_view name, const TensorView& tensor, int bytes) {
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(bytes) != 0)
    throw SpecError(fmt::format("{} begins at address {}; it must be a multiple of {} bytes", name,
                                tensor.data, bytes));
}

void check_rows(std::string_view name, const TensorView& tensor, int element_bytes, int bytes) {
  if (tensor.elements() == 0) return;
  const auto last = static_cast<std::size_t>(tensor.rank - 1);
  if (tensor.strides[last] != 1 && tensor.shape[last] > 1)
    throw SpecError(
        fmt::format("{} is {}; its last dimension must be contiguous", name, describe(tensor)));
  for (std::size_t i = 0; i < last; ++i)
    if (tensor.shape[i] > 1 &&
        (tensor.strides[i] < 0 || tensor.strides[i] * element_bytes % bytes != 0))
      throw SpecError(fmt::format("{} is {}; strides must be positive multiples of {} elements",
                                  name, describe(tensor), bytes / element_bytes));
  check_alignment(name, tensor, bytes);
}

namespace {

// Returns the elements from the first to the last of the dimensions for which is_meant(i), both
// included.
template <class IsMeant>
std::int64_t extent_of(const TensorView& tensor, const IsMeant& is_meant) {
  std::int64_t elements = 1;
  for (std::size_t i = 0; std::cmp_less(i, tensor.rank); ++i)
    if (is_meant(i)) elements += tensor.strides[i] * (tensor.shape[i] - 1);
  return elements;
}

std::int64_t extent_from(const TensorView& tensor, std::size_t first) {
  return extent_of(tensor, [&](std::size_t i) { return i >= first; });
}

// Returns true if each step along this dimension passes all elements of dimensions with shorter
// strides.
bool steps_over_others(const TensorView& tensor, std::size_t dimension) {
  const std::int64_t stride = tensor.strides[dimension];
  return stride >= extent_of(tensor, [&](std::size_t i) {
           return i != dimension && tensor.shape[i] > 1 && tensor.strides[i] <= stride;
         });
}

// Returns true if the elements of `a` and `b` alternate along one dimension, as those of the q and
// k views of a fused QKV tensor do. `offset` is the distance from a to b, in elements.
bool are_interleaved(const TensorView& a, const TensorView& b, std::int64_t offset) {
  for (std::size_t i = 0; std::cmp_less(i + 1, a.rank); ++i) {
    const std::int64_t stride = a.strides[i];
    const bool is_alike = a.rank == b.rank && stride == b.strides[i] && stride > 0;
    if (!is_alike || (i > 0 && a.strides[i - 1] % stride != 0)) return false;
    const std::int64_t into = ((offset % stride) + stride) % stride;
    if (into >= extent_from(a, i + 1) && into + extent_from(b, i + 1) <= stride) return true;
  }
  return false;
}

}  // namespace

void check_no_internal_overlap(std::string_view name, const TensorView& tensor) {
  if (tensor.elements() == 0) return;
  for (std::size_t i = 0; std::cmp_less(i, tensor.rank); ++i)
    if (tensor.shape[i] > 1 && !steps_over_others(tensor, i))
      throw SpecError(
          fmt::format("{} is {}; a written tensor must have memory of its own for every element",
                      name, describe(tensor)));
}

namespace {

[[noreturn]] void refuse_shared(std::string_view name, std::string_view other_name) {
  throw SpecError(
      fmt::format("{} and {} share memory; a written tensor must have its own", name, other_name));
}

}  // namespace

void check_no_overlap(std::string_view name, const TensorView& tensor, std::string_view other_name,
                      const TensorView& other, int element_bytes) {
  if (tensor.elements() == 0 || other.elements() == 0) return;
  const auto bytes =
      static_cast<const std::byte*>(other.data) - static_cast<const std::byte*>(tensor.data);
  const std::int64_t offset = bytes / element_bytes;
  if (offset >= extent_from(tensor, 0) || -offset >= extent_from(other, 0)) return;
  if (bytes % element_bytes == 0 && are_interleaved(tensor, other, offset)) return;
  refuse_shared(name, other_name);
}

void check_disjoint_ranges(std::string_view name, const TensorView& tensor,
                           std::string_view other_name, const TensorView& other) {
  if (tensor.elements() == 0 || other.elements() == 0) return;
  const auto offset =
      static_cast<const std::byte*>(other.data) - static_cast<const std::byte*>(tensor.data);
  if (offset >= extent_from(tensor, 0) * bytes_of(tensor.type)) return;
  if (-offset >= extent_from(other, 0) * bytes_of(other.type)) return;
  refuse_shared(name, other_name);
}

std::int64_t length_of_ints(std::string_view name, const TensorView& tensor, const Device& device,
                            ElementType type) {
  check_type(name, tensor, type);
  check_rank(name, tensor, 1, "one-dimensional");
  check_on_device(name, tensor, device);
  if (!tensor.is_contiguous())
    throw SpecError(fmt::format("{} is {}; it must be contiguous", name, describe(tensor)));
  if (tensor.shape[0] > 0) check_alignment(name, tensor, bytes_of(type));
  return tensor.shape[0];
}

const int* ints(const TensorView& tensor) { return static_cast<const int*>(tensor.data); }

void check_length(std::string_view name, const TensorView& tensor, std::int64_t length,
                  const Device& device, ElementType type) {
  const std::int64_t given = length_of_ints(name, tensor, device, type);
  if (given != length)
    throw SpecError(fmt::format("{} has {} elements; it must have {}", name, given, length));
}

void check_within_capacity(std::string_view what, std::int64_t count, std::int64_t capacity) {
  if (count < 0 || count > capacity)
    throw SpecError(
        fmt::format("{} {}; the step was made for at most {}: make one of greater capacity", count,
                    what, capacity));
}

void refuse_in_capture(std::string_view what, const Device& device, Stream stream) {
  if (device.is_capturing(stream))
    throw SpecError(
        fmt::format("{} waits for the stream, which is being captured in a graph; leave it "
                    "out, or call outside the capture",
                    what));
}

}  // namespace lazyrope
