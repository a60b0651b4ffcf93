#include "runtime/engine/counters.h"

#include <fmt/format.h>

namespace lazyrope {
namespace {

constexpr double kSecondsPerMicrosecond = 1e-6;

std::string name_of(const CounterRow& row) {
  return row.label.empty() ? fmt::format("{}_total", row.metric)
                           : fmt::format("{}_total{{{}}}", row.metric, row.label);
}

}  // namespace

const std::vector<CounterRow>& counter_rows() {
  constexpr std::string_view kRequests = "lazyrope_kernel_requests";
  constexpr std::string_view kRequestsHelp =
      "Requests for kernels, by where the kernel came from; \"failed\" has none.";
  constexpr std::string_view kMisses = "lazyrope_cache_misses";
  constexpr std::string_view kMissesHelp =
      "Look-ups in the disk cache that found no usable entry, by reason.";
  static const std::vector<CounterRow> rows = {
      {Counter::kMemoryHits, kRequests, "from=\"memory\"", kRequestsHelp},
      {Counter::kDiskHits, kRequests, "from=\"disk\"", kRequestsHelp},
      {Counter::kCompiled, kRequests, "from=\"compiler\"", kRequestsHelp},
      {Counter::kFailed, kRequests, "from=\"failed\"", kRequestsHelp},
      {Counter::kAbsent, kMisses, "reason=\"absent\"", kMissesHelp},
      {Counter::kOtherCompiler, kMisses, "reason=\"other_compiler\"", kMissesHelp},
      {Counter::kRefused, kMisses, "reason=\"refused\"", kMissesHelp},
      {Counter::kWaits, "lazyrope_cache_lock_waits", "",
       "Waits for another process that compiled the same kernel."},
      {Counter::kWaitMicroseconds, "lazyrope_cache_lock_wait_seconds", "",
       "Seconds that threads waited for the locks of other processes.", kSecondsPerMicrosecond},
      {Counter::kCompileMicroseconds, "lazyrope_compile_seconds", "",
       "Seconds of compiling, summed over threads.", kSecondsPerMicrosecond},
      {Counter::kStoreFailures, "lazyrope_cache_store_failures", "",
       "Compiled kernels that could not be written to the disk cache."},
      {Counter::kEvictions, "lazyrope_cache_evictions", "",
       "Entries that this process removed to keep the disk cache within its budget."},
      {Counter::kEvictedBytes, "lazyrope_cache_evicted_bytes", "", "The bytes of these entries."}};
  return rows;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] static void load_counter_rows() { (void)counter_rows(); }

std::vector<CounterValue> Counters::values() const {
  std::vector<CounterValue> values;
  for (const CounterRow& row : counter_rows())
    values.push_back({name_of(row), static_cast<double>(count(row.counter)) * row.scale});
  return values;
}

std::string Counters::open_metrics() const {
  std::string text;
  std::string_view family;
  for (const CounterRow& row : counter_rows()) {
    if (row.metric != family)
      text += fmt::format("# TYPE {0} counter\n# HELP {0} {1}\n", row.metric, row.help);
    family = row.metric;
    text +=
        fmt::format("{} {}\n", name_of(row), static_cast<double>(count(row.counter)) * row.scale);
  }
  return text + "# EOF\n";
}

}  // namespace lazyrope
