#include "runtime/step/checks.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "codegen/error.h"
#include "runtime/base/overlap.h"
#include "templates/abi/states.h"

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
  if (tensor.is_empty()) return;
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

void check_no_internal_overlap(std::string_view name, const TensorView& tensor) {
  if (overlaps_itself(tensor))
    throw SpecError(
        fmt::format("{} is {}; a written tensor must have memory of its own for every element",
                    name, describe(tensor)));
}

void check_no_overlap(std::string_view name, const TensorView& tensor, std::string_view other_name,
                      const TensorView& other) {
  if (share_memory(tensor, other))
    throw SpecError(fmt::format("{} and {} share memory; a written tensor must have its own", name,
                                other_name));
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

void refuse_segment(std::size_t request, std::size_t segment, std::string_view why) {
  throw SpecError(fmt::format("request {}, segment {}: {}", request, segment, why));
}

void check_memory(std::size_t request, std::size_t segment, int memory, int length) {
  if (!is_legal_code(memory))
    refuse_segment(request, segment,
                   fmt::format("memory = {}; allowed are 0 for tokens, and 1 to {} for entries of "
                               "a memory, plus {} if each entry serves one query head, plus {} m "
                               "if the entries are in cells of m, at most {}",
                               memory, kMaxMemories, kKeyPerHead, kCellEntry, kMaxCellEntries));
  if (!has_whole_cells(memory, length))
    refuse_segment(request, segment,
                   fmt::format("length = {} with memory = {}; a segment with cells of {} entries "
                               "has them and one centre for each cell: a multiple of {} slots",
                               length, memory, cell_entries(memory), cell_entries(memory) + 1));
}

void check_within_capacity(std::string_view what, std::int64_t count, std::int64_t capacity) {
  if (count < 0 || count > capacity)
    throw SpecError(
        fmt::format("{} {}; the step was made for at most {}: make one of greater capacity", count,
                    what, capacity));
}

void check_room(std::string_view capacity, std::size_t bytes, const Device& device) {
  const std::size_t free = device.free_bytes();
  if (bytes > free)
    throw SpecError(
        fmt::format("capacity: {}; it takes {} bytes of memory of {}, which has {} free: "
                    "give a smaller capacity",
                    capacity, bytes, device.name(), free));
}

void refuse_in_capture(std::string_view what, const Device& device, Stream stream) {
  if (device.is_capturing(stream))
    throw SpecError(
        fmt::format("{} waits for the stream, which is being captured in a graph; leave it "
                    "out, or call outside the capture",
                    what));
}

}  // namespace lazyrope
