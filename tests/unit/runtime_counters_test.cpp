#include <gtest/gtest.h>

#include <set>
#include <string>

#include "runtime/engine/counters.h"

namespace lazyrope {
namespace {

TEST(Counters, HaveOneRowEach) {
  std::set<Counter> counters;
  std::set<std::string> names;
  for (const CounterRow& row : counter_rows()) counters.insert(row.counter);
  for (const CounterValue& value : Counters().values()) names.insert(value.name);
  EXPECT_EQ(counters.size(), kNumCounters);
  EXPECT_EQ(names.size(), kNumCounters);
}

TEST(Counters, BeginAtZeroAndAddUpInTheUnitOfTheirMetric) {
  Counters counters;
  for (const CounterValue& value : counters.values()) EXPECT_EQ(value.value, 0.0) << value.name;
  counters.add(Counter::kDiskHits);
  counters.add(Counter::kDiskHits);
  counters.add(Counter::kCompileMicroseconds, 1'500'000);
  for (const CounterValue& value : counters.values()) {
    const bool is_hits = value.name == "lazyrope_kernel_requests_total{from=\"disk\"}";
    const bool is_time = value.name == "lazyrope_compile_seconds_total";
    EXPECT_DOUBLE_EQ(value.value, is_hits ? 2.0 : is_time ? 1.5 : 0.0) << value.name;
  }
}

// A metric family has its type and help once, before its values, and the text ends in "# EOF"
// (OpenMetrics 1.0, "Overall structure").
TEST(Counters, AreOpenMetricsText) {
  Counters counters;
  counters.add(Counter::kAbsent, 3);
  const std::string text = counters.open_metrics();
  const auto at = [&](const std::string& part) {
    const auto first = text.find(part);
    EXPECT_NE(first, std::string::npos) << part;
    EXPECT_EQ(text.find(part, first + 1), std::string::npos) << part << " is there twice";
    return first;
  };
  EXPECT_LT(at("# TYPE lazyrope_cache_misses counter\n"), at("# HELP lazyrope_cache_misses "));
  EXPECT_LT(at("# HELP lazyrope_cache_misses "),
            at("lazyrope_cache_misses_total{reason=\"absent\"} 3\n"));
  at("lazyrope_cache_misses_total{reason=\"refused\"} 0\n");
  EXPECT_TRUE(text.ends_with("# EOF\n"));
}

}  // namespace
}  // namespace lazyrope
