#include "runtime/step/step_check.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "codegen/error.h"
#include "runtime/step/checks.h"

namespace lazyrope {
namespace {

void check_indptr(const char* name, const std::vector<int>& indptr, std::size_t total,
                  const char* of_what) {
  if (indptr.front() != 0)
    throw SpecError(fmt::format("{}[0] = {}; it must be 0", name, indptr.front()));
  for (std::size_t r = 0; r + 1 < indptr.size(); ++r)
    if (indptr[r + 1] < indptr[r])
      throw SpecError(fmt::format("{}[{}] = {} after {}; it must not decrease", name, r + 1,
                                  indptr[r + 1], indptr[r]));
  if (std::cmp_not_equal(indptr.back(), total))
    throw SpecError(fmt::format("{}[{}] = {}, but there are {} {}", name, indptr.size() - 1,
                                indptr.back(), total, of_what));
}

// Returns how many pages segment s uses, from its first_page on.
std::int64_t page_count(const StepValues& v, std::size_t s, int page_size) {
  if (v.length[s] == 0) return 0;
  return (std::int64_t{v.lead[s]} + v.length[s] + page_size - 1) / page_size;
}

// Calls visit(request, segment) for every segment.
template <class Visit>
void for_each_segment(const StepValues& v, const Visit& visit) {
  for (std::size_t r = 0; r + 1 < v.segment_indptr.size(); ++r)
    for (int s = v.segment_indptr[r]; s < v.segment_indptr[r + 1]; ++s)
      visit(r, static_cast<std::size_t>(s));
}

void check_segment(const StepValues& v, std::size_t r, std::size_t s, int page_size) {
  if (v.length[s] < 0)
    refuse_segment(r, s, fmt::format("length = {}; it must be at least 0", v.length[s]));
  if (v.start[s] < 0)
    refuse_segment(r, s, fmt::format("start = {}; it must be at least 0", v.start[s]));
  if (v.lead[s] < 0 || v.lead[s] >= page_size)
    refuse_segment(r, s, fmt::format("lead = {}; allowed are 0 to {}", v.lead[s], page_size - 1));
  if (!v.memory.empty()) check_memory(r, s, v.memory[s], v.length[s]);
  for (const int base : {v.base[s], v.mask_base[s]}) {
    const std::int64_t last = std::int64_t{base} + v.start[s] + v.length[s];
    const std::int64_t origin = std::int64_t{base} + v.start[s] - v.lead[s];
    if (last > kLargestInt32 || origin < kSmallestInt32)
      refuse_segment(r, s,
                     fmt::format("logical positions {} (with the lead) to {}; they must fit int32",
                                 origin, last));
  }
  if (v.length[s] == 0) return;
  const std::int64_t end = v.first_page[s] + page_count(v, s, page_size);
  if (v.first_page[s] < 0 || std::cmp_greater(end, v.pages.size()))
    refuse_segment(r, s,
                   fmt::format("pages {} to {} of its list; pages has {} elements", v.first_page[s],
                               end - 1, v.pages.size()));
}

void check_page(std::size_t r, std::size_t s, std::int64_t i, int page,
                std::optional<std::int64_t> num_pages) {
  if (page < 0)
    refuse_segment(r, s, fmt::format("page {} of its list is {}; it must be at least 0", i, page));
  if (num_pages && page >= *num_pages)
    refuse_segment(r, s,
                   fmt::format("page {} of its list is {}; the pool has pages 0 to {}", i, page,
                               *num_pages - 1));
}

}  // namespace

StepValues StepValues::copy_of(const StepTensors& t, const Device& device, Stream stream) {
  const auto copy = [&](const TensorView& tensor) { return host_copy(tensor, device, stream); };
  const Segments& s = t.segments;
  StepValues v = {copy(t.q_indptr),
                  copy(t.q_position),
                  copy(s.indptr),
                  copy(s.base),
                  copy(s.start),
                  copy(s.length),
                  copy(s.first_page),
                  {},
                  {},
                  {},
                  copy(t.pages)};
  v.lead = s.lead ? copy(*s.lead) : std::vector<int>(v.base.size(), 0);
  v.mask_base = s.mask_base ? copy(*s.mask_base) : v.base;
  if (s.memory) v.memory = copy(*s.memory);
  return v;
}

void check_step_values(const StepValues& v, int page_size, const StepCapacity& capacity,
                       std::optional<std::int64_t> num_pages) {
  check_indptr("q_indptr", v.q_indptr, v.q_position.size(), "query positions");
  check_indptr("segments.indptr", v.segment_indptr, v.base.size(), "segments");
  for (std::size_t r = 0; r + 1 < v.q_indptr.size(); ++r)
    if (v.q_indptr[r + 1] - v.q_indptr[r] > capacity.tokens_per_request)
      throw SpecError(
          fmt::format("request {} has {} query tokens; the step was made for at most {} a "
                      "request",
                      r, v.q_indptr[r + 1] - v.q_indptr[r], capacity.tokens_per_request));
  for_each_segment(v, [&](std::size_t r, std::size_t s) { check_segment(v, r, s, page_size); });
  for_each_segment(v, [&](std::size_t r, std::size_t s) {
    for (std::int64_t i = 0; i < page_count(v, s, page_size); ++i)
      check_page(r, s, i, v.pages[static_cast<std::size_t>(v.first_page[s] + i)], num_pages);
  });
}

}  // namespace lazyrope
