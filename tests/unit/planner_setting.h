#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <utility>

#include "tests/support/specs.h"

namespace lazyrope {

// A random step, and the config and GPU for which it is planned.
struct Setting {
  const char* name;
  std::string mask = "causal";
  int group_size = 2;
  int num_kv_heads = 2;
  int sm_count = 4;
  int page_size = 16;
  int min_split_blocks = 1;
  int heads_per_work_tile = 1;
  int tile_heads = 1;
  int fixed_split_blocks = 0;
  int requests = 6;
  int most_segments = 6;  // segments of a request, at most
  int least_tokens = 0;   // query tokens of a request
  int most_tokens = 40;
  int first_idle = 0;  // the first of `idle_requests` requests without query tokens
  int idle_requests = 0;
  int capacity_tokens = 1000;  // the capacity's tokens_per_request
  int most_length = 200;       // tokens of a segment
  bool needs_scratch = false;
  bool has_queue = false;
  bool loses_bits = false;  // costs exceed an int32, so the planner drops low bits
  bool equal_splits = true;
};

inline void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

// Returns the slots [first, end) of a segment that tokens at these positions see.
inline std::pair<std::int64_t, std::int64_t> visible(const Setting& setting, int first_position,
                                                     int last_position, std::int64_t origin,
                                                     std::int64_t begin, std::int64_t end) {
  const auto size = [&] { return std::int64_t{example_mask(setting.mask).begin()->second}; };
  std::int64_t first = std::numeric_limits<std::int64_t>::min() / 2;
  std::int64_t last = std::numeric_limits<std::int64_t>::max() / 2;
  if (setting.mask != "full") last = last_position;
  if (setting.mask == "sliding_window") first = first_position - size() + 1;
  if (setting.mask == "chunked") first = first_position - first_position % size();
  return {std::max(begin, first - origin), std::min(end, last - origin + 1)};
}

}  // namespace lazyrope
