#include "runtime/step/append_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "codegen/error.h"
#include "runtime/base/trace.h"
#include "runtime/step/accessed_memory.h"
#include "runtime/step/checks.h"

namespace lazyrope {
namespace {

struct AppendValues {
  std::vector<int> indptr;
  std::vector<int> start;
  std::vector<int> first_page;
  std::vector<int> lead;
  std::vector<int> pages;
};

void check_indptr(const std::vector<int>& indptr, int capacity) {
  if (indptr[0] != 0) throw SpecError(fmt::format("spans.indptr[0] = {}; it must be 0", indptr[0]));
  for (std::size_t r = 0; r + 1 < indptr.size(); ++r)
    if (indptr[r + 1] < indptr[r])
      throw SpecError(
          fmt::format("spans.indptr[{}] = {} after {}; it must begin with 0 and not decrease",
                      r + 1, indptr[r + 1], indptr[r]));
  check_within_capacity("tokens to append", indptr.back(), capacity);
}

void check_span(const AppendValues& v, std::size_t s, int page_size) {
  const int count = v.indptr[s + 1] - v.indptr[s];
  if (v.lead[s] < 0 || v.start[s] < 0)
    throw SpecError(fmt::format("span {}: start = {}, lead = {}; both must be at least 0", s,
                                v.start[s], v.lead[s]));
  if (const std::int64_t end = std::int64_t{v.start[s]} + count;
      end > std::numeric_limits<int>::max())
    throw SpecError(
        fmt::format("span {}: start + rows = {}; indices in a document must fit int32", s, end));
  const std::int64_t end =
      v.first_page[s] + (std::int64_t{v.lead[s]} + count + page_size - 1) / page_size;
  if (count == 0) return;
  if (v.first_page[s] < 0 || std::cmp_greater(end, v.pages.size()))
    throw SpecError(fmt::format("span {}: pages {} to {} of its list; pages has {} elements", s,
                                v.first_page[s], end - 1, v.pages.size()));
  for (std::int64_t i = v.first_page[s] + v.lead[s] / page_size; i < end; ++i)
    if (const int page = v.pages[static_cast<std::size_t>(i)]; page < 0)
      throw SpecError(fmt::format("span {}: page {} of its list is {}; it must be at least 0", s,
                                  i - v.first_page[s], page));
}

void check_values(const AppendTensors& t, const PlanAppendParams& params, const Device& device,
                  Stream stream) {
  const auto copy = [&](const TensorView& tensor) { return host_copy(tensor, device, stream); };
  const TokenSpans& spans = t.spans;
  AppendValues v = {
      copy(spans.indptr), copy(spans.start), copy(spans.first_page), {}, copy(t.pages)};
  v.lead = spans.lead ? copy(*spans.lead) : std::vector<int>(v.start.size(), 0);
  check_indptr(v.indptr, params.capacity);
  for (std::size_t s = 0; s < v.start.size(); ++s) check_span(v, s, params.page_size);
}

void check_values(const TokenSlots& t, int page_size, const Device& device, Stream stream) {
  const auto slots = host_copy<std::int64_t>(t.slot_mapping, device, stream);
  const auto index = host_copy<std::int64_t>(t.index, device, stream);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0) continue;
    if (slots[i] / page_size > kLargestInt32)
      throw SpecError(fmt::format("slots.slot_mapping[{}] = {}, on page {}; a page must fit int32",
                                  i, slots[i], slots[i] / page_size));
    if (index[i] < 0 || index[i] > kLargestInt32)
      throw SpecError(
          fmt::format("slots.index[{}] = {}; it must be 0 to {}", i, index[i], kLargestInt32));
  }
}

}  // namespace

AppendStep::AppendStep(std::shared_ptr<const Device> device, std::shared_ptr<const Kernel> planner,
                       PoolFormat format, AppendCapacity capacity)
    : device_(std::move(device)),
      planner_(std::move(planner)),
      format_(format),
      max_spans_(capacity.spans) {
  check_format(format_);
  if (capacity.tokens < 0)
    throw SpecError(fmt::format("capacity: tokens = {}; it must be at least 0", capacity.tokens));
  if (max_spans_ && *max_spans_ < 0)
    throw SpecError(fmt::format("capacity: spans = {}; it must be at least 0", *max_spans_));
  const std::size_t bytes =
      static_cast<std::size_t>(std::max(1, capacity.tokens)) * sizeof(AppendRecord);
  check_room(fmt::format("tokens = {}", capacity.tokens), bytes, *device_);
  memory_ = std::make_unique<DeviceBuffer>(device_, bytes);
  params_.records = static_cast<AppendRecord*>(memory_->data());
  params_.capacity = capacity.tokens;
  params_.page_size = format_.page_size;
}

void AppendStep::update(const AppendTensors& t, bool check, Stream stream) {
  const TokenSpans& s = t.spans;
  const std::int64_t spans = length_of_ints("spans.start", s.start, *device_);
  check_length("spans.indptr", s.indptr, spans + 1, *device_);
  check_length("spans.first_page", s.first_page, spans, *device_);
  if (s.lead) check_length("spans.lead", *s.lead, spans, *device_);
  if (max_spans_) check_within_capacity("spans", spans, *max_spans_);
  length_of_ints("pages", t.pages, *device_);
  if (check) {
    refuse_in_capture("check=True", *device_, stream);
    check_values(t, params_, *device_, stream);
  }
  params_.indptr = ints(s.indptr);
  params_.first = ints(s.start);
  params_.first_page = ints(s.first_page);
  params_.lead = s.lead ? ints(*s.lead) : nullptr;
  params_.pages = ints(t.pages);
  params_.num_requests = static_cast<int32>(spans);
  plan(stream, [&] {
    return AccessedMemory()
        .reads("spans.indptr", s.indptr)
        .reads("spans.start", s.start)
        .reads("spans.first_page", s.first_page)
        .reads("spans.lead", s.lead)
        .reads("pages", t.pages)
        .writes("the append step", *memory_)
        .ranges();
  });
}

void AppendStep::update(const TokenSlots& t, bool check, Stream stream) {
  constexpr ElementType kType = ElementType::kInt64;
  const std::int64_t slots = length_of_ints("slots.slot_mapping", t.slot_mapping, *device_, kType);
  check_length("slots.index", t.index, slots, *device_, kType);
  check_within_capacity("tokens to append", slots, capacity());
  if (check) {
    refuse_in_capture("check=True", *device_, stream);
    check_values(t, params_.page_size, *device_, stream);
  }
  params_.indptr = nullptr;
  params_.num_slots = static_cast<int32>(slots);
  params_.slot_mapping = static_cast<const int64*>(t.slot_mapping.data);
  params_.index = static_cast<const int64*>(t.index.data);
  plan(stream, [&] {
    return AccessedMemory()
        .reads("slots.slot_mapping", t.slot_mapping)
        .reads("slots.index", t.index)
        .writes("the append step", *memory_)
        .ranges();
  });
}

void AppendStep::plan(Stream stream, AccessedMemoryFn accessed_memory) {
  TraceSpan span("plan an append");
  span.with("tokens", capacity());
  is_filled_ = false;  // stays so if the launch throws: the records are then undefined
  if (capacity() > 0) {
    const int threads = planner_->binary().threads;
    planner_->on(*device_).launch((capacity() + threads - 1) / threads, &params_, stream,
                                  accessed_memory);
  }
  is_filled_ = true;
}

std::vector<AppendRecord> AppendStep::host_records(Stream stream) const {
  refuse_in_capture("check=True", *device_, stream);
  std::vector<AppendRecord> records(static_cast<std::size_t>(capacity()));
  device_->copy_to_host(records.data(), params_.records, records.size() * sizeof(AppendRecord),
                        stream);
  return records;
}

void AppendStep::check_pages(std::int64_t num_pages, Stream stream, std::string_view name) const {
  const std::vector<AppendRecord> records = host_records(stream);
  for (std::size_t i = 0; i < records.size(); ++i)
    if (records[i].slot >= 0 && (records[i].page < 0 || records[i].page >= num_pages))
      throw SpecError(fmt::format("row {} of {} is on page {}; the pool has pages 0 to {}", i, name,
                                  records[i].page, num_pages - 1));
}

void AppendStep::check_writes(std::int64_t num_rows, std::int64_t num_pages, Stream stream) const {
  check_pages(num_pages, stream);
  const std::vector<AppendRecord> records = host_records(stream);
  for (std::size_t i = records.size(); std::cmp_greater(i, num_rows); --i)
    if (records[i - 1].slot >= 0)
      throw SpecError(
          fmt::format("k has {} rows; the step has slots for {}: the slots of the other rows would "
                      "keep their old keys and values",
                      num_rows, i));
  writers_of(records, "step");
}

std::map<std::pair<int, int>, std::size_t> writers_of(const std::vector<AppendRecord>& records,
                                                      std::string_view name) {
  std::map<std::pair<int, int>, std::size_t> writers;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto [page, slot] = std::pair(records[i].page, records[i].slot);
    if (slot < 0) continue;
    const auto [at, is_new] = writers.emplace(std::pair(page, slot), i);
    if (!is_new)
      throw SpecError(
          fmt::format("rows {} and {} of {} are both slot {} of page {}; no slot may be written "
                      "twice",
                      at->second, i, name, slot, page));
  }
  return writers;
}

}  // namespace lazyrope
