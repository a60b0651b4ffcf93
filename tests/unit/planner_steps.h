// Steps for the planner to plan.
#pragma once

#include <cstddef>
#include <numeric>
#include <random>

#include "tests/support/metadata.h"
#include "tests/unit/planner_model.h"

namespace lazyrope {

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  // Returns an integer from `least` to `most`, all equally likely.
  int between(int least, int most) { return std::uniform_int_distribution(least, most)(engine_); }

 private:
  std::mt19937 engine_;
};

// Returns requests with random segments and query tokens. Some segments start inside a page, and
// some start at a position before the end of the previous segment.
inline StepArrays random_step(const Setting& setting, Random& random) {
  StepArrays arrays;
  arrays.q_indptr = arrays.segment_indptr = {0};
  for (int r = 0; r < setting.requests; ++r) {
    int position = random.between(-50, 50);
    const int segments = random.between(0, setting.most_segments);
    for (int i = 0; i < segments; ++i) {
      const int start = random.between(0, 20);
      const int length = random.between(0, setting.most_length);
      const int lead = random.between(0, 3) == 0 ? random.between(0, setting.page_size - 1) : 0;
      arrays.base.push_back(position - start);
      arrays.start.push_back(start);
      arrays.length.push_back(length);
      arrays.lead.push_back(lead);
      arrays.first_page.push_back(static_cast<int>(arrays.pages.size()));
      const int pages = (lead + length + setting.page_size - 1) / setting.page_size;
      for (int p = 0; p < pages; ++p) arrays.pages.push_back(random.between(0, 999));
      position += random.between(0, 3) == 0 ? -30 : length;
    }
    const bool is_idle = r >= setting.first_idle && r < setting.first_idle + setting.idle_requests;
    const bool is_one = random.between(0, 2) > 0;
    const int some = random.between(setting.least_tokens, setting.most_tokens);
    const int tokens = is_idle ? 0 : is_one ? 1 : some;
    for (int i = 0; i < tokens; ++i)
      arrays.q_position.push_back(position - random.between(0, setting.most_tokens));
    arrays.q_indptr.push_back(static_cast<int>(arrays.q_position.size()));
    arrays.segment_indptr.push_back(static_cast<int>(arrays.base.size()));
  }
  if (arrays.pages.empty()) arrays.pages.push_back(0);
  return arrays;
}

// Returns requests with one query token each, after `length` tokens in documents of `document`
// tokens. `document` divides `length`.
inline StepArrays requests_of_documents(int requests, int length, int document, int page_size) {
  StepArrays arrays;
  arrays.q_indptr = arrays.segment_indptr = {0};
  for (int r = 1; r <= requests; ++r) {
    for (int base = 0; base < length; base += document) {
      arrays.base.push_back(base);
      arrays.start.push_back(0);
      arrays.length.push_back(document);
      arrays.lead.push_back(0);
      arrays.first_page.push_back(0);
    }
    arrays.q_position.push_back(length);
    arrays.q_indptr.push_back(r);
    arrays.segment_indptr.push_back(static_cast<int>(arrays.base.size()));
  }
  arrays.pages.resize(static_cast<std::size_t>((document + page_size - 1) / page_size), 0);
  return arrays;
}

// Returns requests with one query token each, after one segment.
inline StepArrays requests_of_length(int requests, int length, int page_size) {
  return requests_of_documents(requests, length, length, page_size);
}

// Returns one request whose tokens each see the tokens before them.
inline StepArrays causal_request(int tokens, int page_size) {
  StepArrays arrays = requests_of_length(1, tokens, page_size);
  arrays.q_position.resize(static_cast<std::size_t>(tokens));
  std::iota(arrays.q_position.begin(), arrays.q_position.end(), 0);
  arrays.q_indptr.back() = tokens;
  return arrays;
}

}  // namespace lazyrope
