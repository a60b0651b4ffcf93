#pragma once

#include <ostream>
#include <string>

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
};

inline void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

}  // namespace lazyrope
