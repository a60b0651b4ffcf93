#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

// Each value names one thing that an engine counts. counter_rows() has their meanings.
enum class Counter {
  kMemoryHits,
  kDiskHits,
  kCompiled,
  kFailed,
  kAbsent,
  kOtherCompiler,
  kRefused,
  kWaits,
  kWaitMicroseconds,
  kCompileMicroseconds,
  kStoreFailures,
  kEvictions,
  kEvictedBytes,
};
inline constexpr std::size_t kNumCounters = 13;

// One row of the table of counters: its metric, with a label or without.
struct CounterRow {
  Counter counter;
  std::string_view metric;  // the name of the metric family, without its suffix "_total"
  std::string_view label;   // the label of the metric: name="value"; empty: the metric has none
  std::string_view help;    // the meaning of the metric family
  double scale = 1.0;       // the factor from the counter to the metric's unit
};

// Returns the rows, those of one metric family next to each other.
const std::vector<CounterRow>& counter_rows();

// A counter's value, in the unit of its metric.
struct CounterValue {
  std::string name;  // as OpenMetrics writes it: metric_total{label="value"}
  double value;
};

// Counts what an engine does, from its construction on. Safe to use from several threads.
class Counters {
 public:
  void add(Counter counter, std::uint64_t amount = 1) {
    at(counter).fetch_add(amount, std::memory_order_relaxed);
  }
  std::uint64_t count(Counter counter) const {
    return counts_[static_cast<std::size_t>(counter)].load(std::memory_order_relaxed);
  }

  // Returns all values, in the order of counter_rows().
  std::vector<CounterValue> values() const;

  // Returns all values as OpenMetrics text (version 1.0), as a Prometheus server reads it.
  std::string open_metrics() const;

 private:
  std::atomic<std::uint64_t>& at(Counter counter) {
    return counts_[static_cast<std::size_t>(counter)];
  }

  std::array<std::atomic<std::uint64_t>, kNumCounters> counts_ = {};
};

}  // namespace lazyrope
