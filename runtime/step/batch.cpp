#include "runtime/step/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "codegen/error.h"
#include "runtime/driver/device.h"
#include "runtime/engine/devices.h"
#include "runtime/step/checks.h"
#include "templates/abi/step.h"

namespace lazyrope {
namespace {

int count(std::size_t size) { return static_cast<int>(size); }

void check_least(std::size_t r, std::size_t s, const char* name, int value) {
  if (value < 0) refuse_segment(r, s, fmt::format("{} = {}; it must be at least 0", name, value));
}

int length_of(const Segment& segment) {
  return segment.length.value_or(segment.document.num_tokens - segment.start);
}

void check_segment(std::size_t r, std::size_t s, const Segment& segment) {
  const Document& document = segment.document;
  check_least(r, s, "document.first_page", document.first_page);
  check_least(r, s, "document.num_tokens", document.num_tokens);
  check_least(r, s, "document.lead", document.lead);
  check_least(r, s, "start", segment.start);
  if (segment.length) check_least(r, s, "length", *segment.length);
  const std::int64_t end = std::int64_t{segment.start} + segment.length.value_or(0);
  if (end > document.num_tokens)
    refuse_segment(
        r, s,
        fmt::format("{} = {}; the document has {} tokens",
                    segment.length ? "start + length" : "start", end, document.num_tokens));
  if (const std::int64_t slots = std::int64_t{document.lead} + document.num_tokens;
      slots > kLargestInt32)
    refuse_segment(r, s,
                   fmt::format("document.lead + document.num_tokens = {}; it must be at most {}",
                               slots, kLargestInt32));
  const auto check_last = [&](const char* name, int base) {
    const std::int64_t last = std::int64_t{base} + segment.start + length_of(segment);
    if (last > kLargestInt32)
      refuse_segment(r, s,
                     fmt::format("{} + start + length = {}; it must be at most {}", name, last,
                                 kLargestInt32));
  };
  check_memory(r, s, segment.memory, length_of(segment));
  if (has_cells(segment.memory) &&
      (segment.start != 0 || length_of(segment) != document.num_tokens))
    refuse_segment(
        r, s,
        fmt::format("memory = {} has cells; it must be the whole document, without start "
                    "and length",
                    segment.memory));
  check_last("base", segment.base);
  if (segment.mask_base) check_last("mask_base", *segment.mask_base);
}

void check_room(std::string_view what, std::int64_t given, std::int64_t room) {
  if (given > room)
    throw SpecError(
        fmt::format("{} {} are {} more than the batch has room for ({}): make one of greater "
                    "capacity, or give fewer",
                    given, what, given - room, room));
}

void check_at_least_0(const char* name, int value) {
  if (value < 0)
    throw SpecError(fmt::format("capacity: {} = {}; it must be at least 0", name, value));
}

StepCapacity complete(StepCapacity capacity) {
  check_at_least_0("requests", capacity.requests);
  check_at_least_0("segments", capacity.segments);
  check_at_least_0("query_tokens", capacity.query_tokens);
  check_at_least_0("tokens_per_request", capacity.tokens_per_request);
  check_at_least_0("rotated_tokens", capacity.rotated_tokens);
  check_at_least_0("mass_pages", capacity.mass_pages);
  if (capacity.tokens_per_request == 0 || capacity.tokens_per_request > capacity.query_tokens)
    capacity.tokens_per_request = capacity.query_tokens;
  return capacity;
}

std::size_t bytes_for(const StepCapacity& capacity) {
  const std::size_t ints = 3 * (static_cast<std::size_t>(capacity.requests) + 1) +
                           static_cast<std::size_t>(capacity.query_tokens) +
                           7 * static_cast<std::size_t>(capacity.segments);
  return ints * sizeof(int);
}

// A mask_base that equals the base changes nothing.
bool has_mask_base(std::span<const Request> requests) {
  const auto differs = [](const Segment& segment) {
    return segment.mask_base.value_or(segment.base) != segment.base;
  };
  return std::ranges::any_of(requests, [&](const Request& request) {
    return std::ranges::any_of(request.segments, differs);
  });
}

}  // namespace

Batch::Batch(const TensorView& pages, StepCapacity capacity)
    : Batch(device_of("pages", pages), pages, capacity) {}

Batch::Batch(std::shared_ptr<const Device> device, const TensorView& pages, StepCapacity capacity)
    : device_(std::move(device)), pages_(pages), capacity_(complete(capacity)) {
  length_of_ints("pages", pages, *device_);
  check_room(to_string(capacity_), bytes_for(capacity_), *device_);
  memory_ = std::make_unique<DeviceBuffer>(device_, bytes_for(capacity_));
  staging_ = device_->staging(bytes_for(capacity_));
}

Batch::Batch(Batch&&) noexcept = default;
Batch& Batch::operator=(Batch&&) noexcept = default;
Batch::~Batch() = default;

int Batch::num_requests() const { return count(values_.q_indptr.size()) - 1; }
int Batch::num_segments() const { return count(values_.base.size()); }
int Batch::num_tokens() const { return count(values_.q_position.size()); }

std::vector<int> Batch::run_indptr() const {
  const Values& v = values_;
  std::vector<int> indptr = {0};
  for (std::size_t s = 0; s < v.length.size(); ++s) {
    const std::int64_t slots = v.slot[s] % kRunSlots + std::int64_t{v.length[s]};
    const std::int64_t runs = v.length[s] > 0 ? (slots + kRunSlots - 1) / kRunSlots : 0;
    check_room("runs of 16 slots", indptr.back() + runs, kLargestInt32);
    indptr.push_back(static_cast<int>(indptr.back() + runs));
  }
  return indptr;
}

template <class Weight>
std::int64_t Batch::sum_of_runs(const Weight& weight) const {
  const std::vector<int> runs = run_indptr();
  const auto run_at = [&](int segment) { return runs[static_cast<std::size_t>(segment)]; };
  const Values& v = values_;
  std::int64_t sum = 0;
  for (std::size_t r = 0; r + 1 < v.q_indptr.size(); ++r)
    sum += weight(r) * (run_at(v.segment_indptr[r + 1]) - run_at(v.segment_indptr[r]));
  return sum;
}

std::int64_t Batch::run_slots(int min_tokens) const {
  return kRunSlots * sum_of_runs([&](std::size_t r) -> std::int64_t {
           return values_.q_indptr[r + 1] - values_.q_indptr[r] >= min_tokens;
         });
}

std::int64_t Batch::token_runs() const {
  const Values& v = values_;
  return sum_of_runs([&](std::size_t r) -> std::int64_t {
    return v.mass_tokens.empty() ? v.q_indptr[r + 1] - v.q_indptr[r] : v.mass_tokens[r];
  });
}

StepCapacity Batch::capacity_for(std::span<const Request> requests) {
  std::size_t segments = 0;
  std::size_t tokens = 0;
  std::size_t most = 0;
  for (const Request& request : requests) {
    segments += request.segments.size();
    tokens += request.positions.size();
    most = std::max(most, request.positions.size());
  }
  check_room("query tokens", static_cast<std::int64_t>(tokens), kLargestInt32);
  check_room("segments", static_cast<std::int64_t>(segments), kLargestInt32);
  return {count(requests.size()), count(segments), count(tokens), count(most)};
}

void Batch::check_within_capacity(std::span<const Request> requests) const {
  const StepCapacity needed = capacity_for(requests);
  check_room("requests", needed.requests, capacity_.requests);
  check_room("segments", needed.segments, capacity_.segments);
  check_room("query tokens", needed.query_tokens, capacity_.query_tokens);
  for (std::size_t r = 0; r < requests.size(); ++r)
    check_room(fmt::format("query tokens of request {}", r), std::ssize(requests[r].positions),
               capacity_.tokens_per_request);
}

void Batch::Values::add(const Request& request) {
  q_position.insert(q_position.end(), request.positions.begin(), request.positions.end());
  q_indptr.push_back(count(q_position.size()));
  for (const Segment& segment : request.segments) {
    base.push_back(segment.base);
    start.push_back(segment.start);
    length.push_back(length_of(segment));
    first_page.push_back(segment.document.first_page);
    slot.push_back(segment.document.lead + segment.start);
  }
  segment_indptr.push_back(count(base.size()));
}

void Batch::fill(std::span<const Request> requests) {
  check_within_capacity(requests);
  for (std::size_t r = 0; r < requests.size(); ++r) {
    if (const int counted = requests[r].mass_tokens.value_or(0); counted < 0)
      throw SpecError(
          fmt::format("request {}: mass_tokens = {}; it must be at least 0", r, counted));
    for (std::size_t s = 0; s < requests[r].segments.size(); ++s)
      check_segment(r, s, requests[r].segments[s]);
  }
  Values values;
  for (const Request& request : requests) values.add(request);
  if (has_mask_base(requests))
    for (const Request& request : requests)
      for (const Segment& segment : request.segments)
        values.mask_base.push_back(segment.mask_base.value_or(segment.base));
  const auto is_memory_segment = [](const Segment& segment) { return segment.memory != 0; };
  if (std::ranges::any_of(requests, [&](const Request& r) {
        return std::ranges::any_of(r.segments, is_memory_segment);
      }))
    for (const Request& request : requests)
      for (const Segment& segment : request.segments) values.memory.push_back(segment.memory);
  if (std::ranges::any_of(requests, [](const Request& r) { return r.mass_tokens.has_value(); }))
    for (const Request& request : requests) {
      const int tokens = count(request.positions.size());
      values.mass_tokens.push_back(std::min(request.mass_tokens.value_or(tokens), tokens));
    }
  values_ = std::move(values);
}

std::size_t Batch::Values::ints() const {
  return q_indptr.size() + q_position.size() + segment_indptr.size() + 5 * base.size() +
         mask_base.size() + memory.size() + mass_tokens.size();
}

void Batch::check_pages(int page_size) const {
  const Values& v = values_;
  for (std::size_t r = 0; r + 1 < v.segment_indptr.size(); ++r)
    for (int i = v.segment_indptr[r]; i < v.segment_indptr[r + 1]; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const auto s = static_cast<std::size_t>(i - v.segment_indptr[r]);
      const int base = v.mask_base.empty() ? v.base[at] : std::min(v.base[at], v.mask_base[at]);
      const std::int64_t origin = std::int64_t{base} + v.start[at] - v.slot[at] % page_size;
      if (origin < kSmallestInt32)
        refuse_segment(
            r, s,
            fmt::format("slot 0 of its first page would have the logical position {}; it must "
                        "fit int32",
                        origin));
      const std::int64_t slots = std::int64_t{v.slot[at]} + v.length[at];
      const std::int64_t end = v.first_page[at] + (slots + page_size - 1) / page_size;
      if (v.length[at] > 0 && end > pages_.shape[0])
        refuse_segment(r, s,
                       fmt::format("its last page is element {} of pages, which has {} elements",
                                   end - 1, pages_.shape[0]));
    }
}

// Writes the arrays in the order in which tensors() takes them.
void Batch::write(int page_size, int* to) const {
  const Values& v = values_;
  for (const std::vector<int>* values :
       {&v.q_indptr, &v.q_position, &v.segment_indptr, &v.base, &v.start, &v.length})
    to = std::copy(values->begin(), values->end(), to);
  for (std::size_t i = 0; i < v.slot.size(); ++i) *to++ = v.first_page[i] + v.slot[i] / page_size;
  for (const int slot : v.slot) *to++ = slot % page_size;
  to = std::ranges::copy(v.mask_base, to).out;
  to = std::ranges::copy(v.memory, to).out;
  std::ranges::copy(v.mass_tokens, to);
}

StepTensors Batch::tensors() const {
  int* next = static_cast<int*>(memory_->data());
  const auto take = [&](std::size_t size) {
    int* data = next;
    next += size;
    return make_tensor(data, ElementType::kInt32, {static_cast<std::int64_t>(size)},
                       pages_.device_type, pages_.device);
  };
  const std::size_t rows = values_.q_indptr.size();
  const std::size_t segments = values_.base.size();
  StepTensors t;
  t.q_indptr = take(rows);
  t.q_position = take(values_.q_position.size());
  t.segments.indptr = take(rows);
  t.segments.base = take(segments);
  t.segments.start = take(segments);
  t.segments.length = take(segments);
  t.segments.first_page = take(segments);
  t.segments.lead = take(segments);
  if (!values_.mask_base.empty()) t.segments.mask_base = take(segments);
  if (!values_.memory.empty()) t.segments.memory = take(segments);
  if (!values_.mass_tokens.empty()) t.mass_tokens = take(values_.mass_tokens.size());
  t.pages = pages_;
  return t;
}

void Batch::wait() const { staging_->acquire(); }

StepTensors Batch::upload(int page_size, Stream stream) {
  if (device_->is_capturing(stream))
    throw SpecError(
        "a captured graph would not repeat the host's part of an upload: call plan() and update() "
        "of a batch outside the capture. A captured append or attention call sees the requests of "
        "the latest update()");
  check_pages(page_size);
  write(page_size, reinterpret_cast<int*>(staging_->acquire()));
  staging_->copy_to(memory_->data(), values_.ints() * sizeof(int), stream);
  return tensors();
}

}  // namespace lazyrope
